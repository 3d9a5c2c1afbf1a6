//! `djinn pull`

use djinn_hub::Pull;

use crate::{
    args::PullArgs,
    failure::{Failure, say},
    progress::Downloads,
};

/// Downloads a model and says where it lies.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let mut request = Pull::from_env(&args.id)?;
    request.revision.clone_from(&args.revision);
    let folder = djinn_hub::pull(&request, &Downloads::default())?;
    say(&format!("{}\n", folder.display()))?;
    eprintln!("ready: djinn run --model {}", args.id);
    Ok(())
}
