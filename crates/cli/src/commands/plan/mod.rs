//! `djinn plan`

mod lines;
mod memory_line;
mod model_lines;
mod picture;
mod pieces;
mod report;
#[cfg(test)]
mod tests;

use std::path::Path;

use djinn_client::v1;
use djinn_engine::{Count, SessionDemand, SizeRange, check_writable};
use djinn_terminal::{Failure, say, say_json};
use djinn_types::{Amount, Size};
use serde_json::{Value, json};

use self::{lines::PlannedMemory, report::PlanReport};
use super::{
    connection::{Connection, LocalEngine, on_model, runtime},
    models::kv_choice,
    serve,
    sizing::interactive,
};
use crate::args::{PlanArgs, Switch, file_settings};

/// Plans the memory of models and predicts their speed.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    if let Some(file) = &args.svg {
        check_writable(file)?;
    }
    let request = request(args)?;
    let (plans, memory) = match &args.config {
        Some(file) => configured(file, request)?,
        None => {
            let plan = on_model(
                &args.server,
                &args.model,
                engine(args),
                async |connection| ask(connection, request).await,
            )?;
            let memory =
                PlannedMemory::of(&[(plan.model.clone(), plan.clone())], plan.budget_bytes);
            (vec![(plan.model.clone(), plan)], memory)
        }
    };
    if let Some(file) = &args.svg {
        let written = std::fs::write(file, picture::svg(&memory));
        written.map_err(|error| Failure::Message(format!("{}: {error}", file.display())))?;
    }
    let reports = plans
        .iter()
        .map(|(name, plan)| PlanReport { args, name, plan });
    match (args.json, &args.config) {
        (true, None) => {
            let mut all: Vec<Value> = reports.map(|report| report.json()).collect();
            let mut one = all.pop().unwrap_or_default();
            one["memory"] = memory.json();
            say_json(&one)
        }
        (true, Some(_)) => {
            let models: Vec<Value> = reports.map(|report| report.json()).collect();
            say_json(&json!({
                "budget_bytes": memory.budget, "models": models, "memory": memory.json(),
                "in_turns": memory.in_turns.is_some(),
            }))
        }
        (false, _) => {
            let heads: String = reports.clone().map(|report| report.head()).collect();
            let details: String = reports.map(|report| report.details()).collect();
            say(&format!("{heads}\n{}\n{details}", memory.text()))
        }
    }
}

/// Plans all models of a configuration file, as `serve` loads them one after the other.
fn configured(
    file: &Path,
    request: v1::PlanRequest,
) -> Result<(Vec<(String, v1::PlanReply)>, PlannedMemory), Failure> {
    let config = serve::config(file_settings(file).map_err(Failure::Message)?)?;
    let budget = config.memory.budget;
    let plans = runtime()?.block_on(djinn_server::plan_configured(config, request))?;
    let memory = PlannedMemory::of(&plans, budget);
    Ok((plans, memory))
}

/// Number of sessions at the full context for which an elastic plan has memory at any load, as on a server.
const FULL_SESSIONS: usize = 4;

/// Engine that is planned in process: sessions with this context and nothing else. Their pages lie on the
/// device together, unless weights yield to them.
fn engine(args: &PlanArgs) -> LocalEngine {
    let (context, sessions) = (args.context, usize::from(args.sessions));
    let rows = args.model.rows;
    let is_elastic = args.model.memory.elastic == Switch::On;
    let settings = Box::new(move |model: &djinn_model::Model| {
        let demand = SessionDemand {
            batch: Count::Set(sessions),
            open: sessions,
            full_sessions: match is_elastic {
                true => sessions.min(FULL_SESSIONS),
                false => sessions,
            },
            together: !is_elastic,
            ..interactive(context, rows)
        };
        Ok(SizeRange::for_sessions(&model.program, demand)?)
    });
    LocalEngine {
        loads: false,
        ..LocalEngine::new(settings)
    }
}

fn request(args: &PlanArgs) -> Result<v1::PlanRequest, Failure> {
    let memory_bytes = match args.model.memory.memory {
        Some(Amount::Bytes(bytes)) => bytes,
        Some(Amount::Share(_)) if args.server.server.is_some() => {
            return Err(Failure::Message(
                "--memory must be a size with --server, since only the server knows its free memory"
                    .into(),
            ));
        }
        Some(Amount::Share(_)) | None => 0,
    };
    let rate = |flag: &str, rate: Option<Size>| match rate {
        Some(Size(0)) => Err(Failure::Message(format!("{flag} must be above 0"))),
        rate => Ok(rate.map(|rate| rate.0 as f64)),
    };
    Ok(v1::PlanRequest {
        limits: Some(v1::ModelLimits {
            memory_bytes,
            context: args.context.unwrap_or(0) as u64,
            batch: u64::from(args.sessions),
            kv_dtype: kv_choice(args.model.memory.kv_dtype),
            ..v1::ModelLimits::default()
        }),
        predict: true,
        link_bytes_per_s: rate("--link", args.link)?,
        compute_bytes_per_s: rate("--compute", args.compute)?,
        pieces: true,
        ..v1::PlanRequest::default()
    })
}

async fn ask(connection: &Connection, request: v1::PlanRequest) -> Result<v1::PlanReply, Failure> {
    let reference = match connection.model.name() {
        "" => connection.model.info().await?.name,
        name => name.to_owned(),
    };
    let request = v1::PlanRequest {
        reference,
        ..request
    };
    Ok(connection.client.plan(request).await?)
}
