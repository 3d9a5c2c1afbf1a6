//! Traces by OpenTelemetry, for who asks for them: a span for every request, and one for every turn in it.
//! Neither has a prompt, a text or a key.

use axum::http::HeaderMap;
use opentelemetry::{
    KeyValue, propagation::Extractor, propagation::TextMapPropagator, trace::TracerProvider,
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use tracing::Span;
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt};
use tracing_subscriber::registry::LookupSpan;

/// Where traces go.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// To a collector that speaks OTLP over gRPC. Has to be made where tokio runs.
    pub fn to(url: &str, node: &str) -> Result<Self, String> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(url)
            .build();
        let resource = Resource::builder()
            .with_service_name("djinn")
            .with_attribute(KeyValue::new("service.instance.id", node.to_owned()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter.map_err(|error| error.to_string())?)
            .with_resource(resource)
            .build();
        Ok(Traces { provider })
    }

    /// What turns spans into traces.
    pub fn layer<S>(&self) -> OpenTelemetryLayer<S, SdkTracer>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("djinn"))
    }

    /// Sends what is left.
    pub fn end(self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::debug!(%error, "the last traces were not sent");
        }
    }
}

struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}

/// Makes a request's span part of its client's trace, where that says so (`traceparent`).
pub fn adopt(span: &Span, headers: &HeaderMap) {
    if headers.contains_key("traceparent") {
        let parent = TraceContextPropagator::new().extract(&Headers(headers));
        // Where nobody keeps traces there is nothing to be part of.
        let _ = span.set_parent(parent);
    }
}
