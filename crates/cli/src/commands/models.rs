//! `djinn models`

use std::path::Path;

use djinn_client::{Client, Push, PushProgress, Register, v1};
use djinn_engine::LoadProgress;
use djinn_terminal::{Failure, model_state, say, say_json};
use djinn_types::{
    KvDtype, Size,
    text::{seconds, table},
};
use serde_json::{Value, json};

use super::connection::on_server;
use crate::{
    args::{LayoutArgs, Models, ModelsArgs},
    progress::{Loading, Sending},
};

/// Lists, registers, pushes or unloads models of a server.
pub fn models(args: ModelsArgs) -> Result<(), Failure> {
    let action = args.action.unwrap_or(Models::List);
    on_server(&args.server, async |client| match &action {
        Models::List => list(client.models().await?, args.json),
        Models::Register { reference, layout } => {
            let model = register(&client, reference, layout).await?;
            print(&model, None, args.json)
        }
        Models::Push {
            folder,
            no_load,
            layout,
        } => {
            let pushed = push(&client, folder).await?;
            if *no_load {
                return print_pushed(&pushed, args.json);
            }
            let mut layout = layout.clone();
            layout.name = layout.name.or_else(|| folder_name(folder));
            let model = register(&client, &pushed.reference, &layout).await?;
            print(&model, Some(&pushed), args.json)
        }
        Models::Unload {
            name,
            force,
            forget,
        } => {
            client.model(name).unload(*force, *forget).await?;
            match args.json {
                true => say_json(&json!({ "unloaded": name, "forgotten": forget })),
                false => say(&format!("{name} is unloaded\n")),
            }
        }
    })
}

fn folder_name(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    Some(folder.file_name()?.to_string_lossy().into_owned())
}

async fn register(
    client: &Client,
    reference: &str,
    layout: &LayoutArgs,
) -> Result<v1::Model, Failure> {
    let count = |n: Option<usize>| n.unwrap_or(0) as u64;
    let limits = v1::ModelLimits {
        memory_bytes: layout.memory.map_or(0, |size| size.0),
        context: count(layout.context),
        batch: count(layout.batch),
        sessions: count(layout.sessions),
        kv_dtype: kv_choice(layout.kv_dtype),
        ..v1::ModelLimits::default()
    };
    let mut request = Register::new(reference).limits(limits);
    if let Some(name) = &layout.name {
        request = request.name(name);
    }
    let loading = Loading::new(reference);
    let update = |progress: v1::LoadProgress| {
        loading.update(LoadProgress {
            loaded: progress.loaded_bytes,
            total: progress.total_bytes,
        });
    };
    Ok(client.register(request, update).await?)
}

/// Type of keys and values in a message.
pub(super) fn kv_choice(choice: Option<KvDtype>) -> i32 {
    choice
        .map_or(v1::KvDtype::Unspecified, v1::KvDtype::from)
        .into()
}

async fn push(client: &Client, folder: &Path) -> Result<Push, Failure> {
    let sending = Sending::new(&folder.display().to_string());
    let update = |progress: PushProgress| match progress {
        PushProgress::Hashing(done, all) => sending.update("hashing", done, all),
        PushProgress::Sending(done, all) => sending.update("sending", done, all),
    };
    Ok(client.push(folder, update).await?)
}

fn print(model: &v1::Model, pushed: Option<&Push>, json: bool) -> Result<(), Failure> {
    if json {
        let mut all = to_json(model);
        if let Some(pushed) = pushed {
            all["sent_bytes"] = json!(pushed.sent);
        }
        return say_json(&all);
    }
    if let Some(pushed) = pushed {
        say(&push_summary(pushed))?;
    }
    say(&format!("{} is ready: {}\n", model.name, model.routing))
}

fn print_pushed(pushed: &Push, json: bool) -> Result<(), Failure> {
    match json {
        true => say_json(&json!({
            "reference": pushed.reference, "files": pushed.files,
            "bytes": pushed.bytes, "sent_bytes": pushed.sent,
        })),
        false => say(&(push_summary(pushed) + &format!("{}\n", pushed.reference))),
    }
}

fn push_summary(pushed: &Push) -> String {
    format!(
        "{} files of {}; sent {}\n",
        pushed.files,
        Size(pushed.bytes),
        Size(pushed.sent)
    )
}

fn list(models: Vec<v1::Model>, json: bool) -> Result<(), Failure> {
    if json {
        let all: Vec<Value> = models.iter().map(to_json).collect();
        return say_json(&json!({ "models": all }));
    }
    let line = |model: &v1::Model| {
        let memory = model.memory.unwrap_or_default();
        vec![
            model.name.clone(),
            model_state(model).to_owned(),
            model.family.clone(),
            Size(memory.total_bytes).to_string(),
            Size(memory.host_bytes).to_string(),
            Size(memory.streamed_bytes).to_string(),
            model.sessions.to_string(),
            seconds(model.idle_s),
            model.reference.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = models.iter().map(line).collect();
    let head = [
        "model", "state", "family", "device", "host", "streams", "sessions", "idle", "from",
    ];
    match rows.is_empty() {
        true => say("no models\n"),
        false => say(&table(&head, &rows)),
    }
}

fn to_json(model: &v1::Model) -> Value {
    let memory = model.memory.unwrap_or_default();
    let dims = model.dims.unwrap_or_default();
    let limits = model.limits.unwrap_or_default();
    json!({
        "name": model.name, "reference": model.reference, "family": model.family,
        "state": model_state(model), "routing": model.routing,
        "has_text": model.has_text, "has_chat": model.has_chat,
        "sessions": model.sessions, "idle_s": model.idle_s,
        "dims": {
            "blocks": dims.blocks, "d_model": dims.d_model, "heads": dims.heads,
            "kv_heads": dims.kv_heads, "d_head": dims.d_head, "d_mlp": dims.d_mlp,
            "vocab": dims.vocab, "context": dims.context,
        },
        "bytes": {
            "resident": memory.resident_bytes, "ring": memory.ring_bytes,
            "experts": memory.experts_bytes, "kv": memory.kv_bytes,
            "activations": memory.activations_bytes, "total": memory.total_bytes,
            "host": memory.host_bytes, "streamed": memory.streamed_bytes,
        },
        "limits": {
            "memory_bytes": limits.memory_bytes, "context": limits.context,
            "batch": limits.batch, "sessions": limits.sessions,
            "kv_dtype": limits.kv_dtype().name(),
        },
    })
}
