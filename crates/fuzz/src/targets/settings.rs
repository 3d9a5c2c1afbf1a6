//! Settings in TOML and YAML: experiments, configurations of a server, and key files.

use std::time::Duration;

use djinn_engine::{KvMemory, PrefixCacheSettings};
use djinn_eval::EvalConfig;
use djinn_server::{LoadOptions, OperationSettings, ServerConfig, ServerLimits};
use djinn_weights::MemorySettings;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;

use crate::{fixtures, scratch};

/// Reads the input as an experiment, as a configuration of a server and as a key file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(config) = EvalConfig::parse(text) {
        // JSON is YAML, so the settings of a result file are a configuration.
        let settings = serde_json::to_string(&config.settings());
        let settings = settings.expect("settings are plain data");
        let again = EvalConfig::parse(&settings).expect("written settings are valid");
        assert_eq!(again.settings(), config.settings());
    }
    // `djinn serve --config` reads its file as this map and checks it with the flags.
    let _ = toml::from_str::<Map<String, Value>>(text);
    let _ = serde_saphyr::from_str::<Map<String, Value>>(text);
    if text.contains("key") {
        read_keys(text);
    }
}

thread_local! {
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the system has room for a runtime");
}

/// Starts and stops a server without models, which reads the key file first.
fn read_keys(text: &str) {
    let home = scratch::folder();
    scratch::write(home.path(), "keys.toml", text.as_bytes());
    let config = ServerConfig {
        listen: Vec::new(),
        node: "fuzz".to_owned(),
        backend: fixtures::backend(),
        memory: MemorySettings::default(),
        host_copy: djinn_server::HostCopy::Auto,
        kv: KvMemory::default(),
        prefix_cache: PrefixCacheSettings::default(),
        models: Vec::new(),
        layout: LoadOptions::default(),
        model_dirs: Vec::new(),
        pushed: home.path().join("pushed"),
        state: None,
        keys: Some(home.path().join("keys.toml")),
        tls: None,
        limits: ServerLimits::default(),
        drain: Duration::ZERO,
        insecure: false,
        operation: OperationSettings::default(),
        commit: String::new(),
    };
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            if let Ok(running) = djinn_server::start(config).await {
                running.reload();
                running.stop().await;
            }
        });
    });
}
