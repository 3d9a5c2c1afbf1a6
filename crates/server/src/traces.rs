//! OpenTelemetry traces: one span per request and one per turn. No span contains a prompt, generated text
//! or a key.

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

/// Exporter of traces to an OpenTelemetry collector.
pub struct TraceExporter {
    provider: SdkTracerProvider,
}

impl TraceExporter {
    /// Creates an exporter to an OTLP/gRPC collector. Must be called on a tokio runtime.
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
        Ok(TraceExporter { provider })
    }

    /// Layer for `tracing-subscriber` that turns spans into traces.
    pub fn layer<S>(&self) -> OpenTelemetryLayer<S, SdkTracer>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("djinn"))
    }

    /// Sends the remaining spans and stops.
    pub fn end(self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::debug!(%error, "sending the last traces failed");
        }
    }
}

/// Reads trace context from HTTP headers.
struct HeaderExtractor<'h>(&'h HeaderMap);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}

/// Makes a request's span a child of the client's span, if the `traceparent` header names one.
pub fn adopt(span: &Span, headers: &HeaderMap) {
    if headers.contains_key("traceparent") {
        let parent = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
        // This fails if no layer records traces, which is expected.
        let _ = span.set_parent(parent);
    }
}
