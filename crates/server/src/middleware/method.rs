//! Kinds of requests, by their paths.

/// Paths of health checks. They need no key, because process managers send them without one.
const HEALTH_PATHS: [&str; 2] = ["/healthz", "/readyz"];
/// gRPC service for health checks, which needs no key either.
const HEALTH_SERVICE: &str = "/grpc.health.v1.Health/";

/// Methods of all gRPC services.
const GRPC_METHODS: [&str; 27] = [
    "Register",
    "List",
    "Plan",
    "Unload",
    "Offer",
    "Push",
    "Tokenize",
    "Detokenize",
    "Create",
    "Generate",
    "Follow",
    "Signal",
    "Fork",
    "Get",
    "Save",
    "Load",
    "Delete",
    "Hooks",
    "Activation",
    "Resume",
    "SetBreakpoints",
    "Branch",
    "BranchBack",
    "Recall",
    "Capabilities",
    "Watch",
    "Timeline",
];

/// Whether a path is a health check.
pub fn is_health(path: &str) -> bool {
    HEALTH_PATHS.contains(&path) || path.starts_with(HEALTH_SERVICE)
}

/// Label of a request in metrics. The set of labels is fixed: a client cannot add a label by asking for
/// another path.
pub fn method_label(path: &str, is_grpc: bool) -> &'static str {
    if is_grpc {
        let last = path.rsplit('/').next().unwrap_or_default();
        let known = GRPC_METHODS.into_iter().find(|name| *name == last);
        return known.unwrap_or("grpc");
    }
    match path {
        "/v1/completions" => "completions",
        "/v1/chat/completions" => "chat",
        "/metrics" => "metrics",
        path if path.starts_with("/v1/models") => "models",
        _ => "other",
    }
}
