//! Plan of a model on a server, which only the server can draw.

use djinn_client::v1;
use djinn_engine::Footprint;
use djinn_types::{Amount, Size};
use serde_json::{Value, json};

use super::{bar, plural};
use crate::{
    args::PlanArgs,
    commands::connection::{address, on_server},
    failure::{Failure, say, say_json},
};

/// Prints where a server would place a model. Loads nothing.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let limits = limits(args)?;
    let (name, plan) = on_server(&args.server, async |client| {
        let name = match &args.model.model {
            Some(name) => name.clone(),
            None => client.model("").info().await?.name,
        };
        let plan = client.plan(&name, limits).await?;
        Ok((name, plan))
    })?;
    match args.json {
        true => say_json(&to_json(args, &name, &plan)),
        false => say(&to_text(args, &name, &plan)),
    }
}

fn limits(args: &PlanArgs) -> Result<v1::ModelLimits, Failure> {
    let memory_bytes = match args.model.memory.memory {
        None => 0,
        Some(Amount::Bytes(bytes)) => bytes,
        Some(Amount::Share(_)) => {
            return Err(Failure::Message(
                "--memory must be a size with --server, since only the server knows its free memory".into(),
            ));
        }
    };
    Ok(v1::ModelLimits {
        memory_bytes,
        context: args.context.unwrap_or(0) as u64,
        batch: u64::from(args.sessions),
        ..v1::ModelLimits::default()
    })
}

/// Memory of the model, as the bar shows it. The remainder of the total belongs to the driver.
fn footprint(memory: &v1::ModelMemory) -> Footprint {
    let mut footprint = Footprint {
        resident: memory.resident_bytes,
        ring: memory.ring_bytes,
        pool: memory.experts_bytes,
        kv: memory.kv_bytes,
        activations: memory.activations_bytes,
        scratch: 0,
        driver: 0,
    };
    footprint.driver = memory.total_bytes.saturating_sub(footprint.total());
    footprint
}

fn to_text(args: &PlanArgs, name: &str, plan: &v1::PlanReply) -> String {
    let memory = plan.memory.unwrap_or_default();
    format!(
        "{name} in {} at {}, {} in a pass, each with up to {} of KV\n{}\n\n{}\n\
         over the link   {} a pass\n",
        Size(memory.total_bytes),
        address(&args.server),
        plural(usize::from(args.sessions), "session"),
        Size(plan.session_kv_bytes),
        plan.routing,
        bar(&footprint(&memory), memory.total_bytes),
        match memory.streamed_bytes {
            0 => "nothing".to_owned(),
            bytes => Size(bytes).to_string(),
        },
    )
}

fn to_json(args: &PlanArgs, name: &str, plan: &v1::PlanReply) -> Value {
    let memory = plan.memory.unwrap_or_default();
    json!({
        "model": name,
        "server": address(&args.server),
        "sessions": args.sessions,
        "reason": plan.routing,
        "bytes": {
            "resident": memory.resident_bytes, "ring": memory.ring_bytes,
            "experts": memory.experts_bytes, "kv": memory.kv_bytes,
            "activations": memory.activations_bytes, "host": memory.host_bytes,
            "total": memory.total_bytes,
        },
        "streamed_bytes_per_pass": memory.streamed_bytes,
        "session_kv_bytes": plan.session_kv_bytes,
    })
}
