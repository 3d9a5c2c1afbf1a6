//! `djinn pull`

use djinn_hub::Pull;
use djinn_terminal::{Failure, say};

use crate::{args::PullArgs, progress::Downloads};

/// Downloads a model and prints its folder.
pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let mut request = Pull::from_env(&args.id)?;
    request.revision.clone_from(&args.revision);
    let folder = djinn_hub::pull(&request, &Downloads::default())?;
    say(&format!("{}\n", folder.display()))?;
    eprintln!("run it with: djinn run --model {}", args.id);
    Ok(())
}
