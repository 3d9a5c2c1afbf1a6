//! Service `Server`: capabilities, live statistics and timelines.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use djinn_device::host::rss_bytes;
use djinn_engine::TierUsage;
use djinn_weights::{PassStats, TimelineEvent, TimelineLane};
use djinn_wire::v1::{self, server_server::Server};
use futures_util::stream;
use tonic::{Request, Response};

use super::service::{GrpcResult, GrpcService, GrpcStream};
use crate::{
    app::App,
    capabilities::{capabilities, device_bytes_used},
    metrics::ModelReading,
    request,
};

/// Interval of a status stream that requests no interval.
const WATCH_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Shortest interval of a status stream.
const WATCH_INTERVAL_MIN: Duration = Duration::from_millis(50);

#[tonic::async_trait]
impl Server for GrpcService {
    type WatchStream = GrpcStream<v1::Status>;

    async fn capabilities(
        &self,
        request: Request<v1::CapabilitiesRequest>,
    ) -> GrpcResult<v1::CapabilitiesReply> {
        let caller = self.caller(&request)?;
        Ok(Response::new(capabilities(&self.0, &caller.owner.name)))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> GrpcResult<Self::WatchStream> {
        let caller = self.caller(&request)?;
        caller.check_admin()?;
        let every = match request.into_inner().every_s {
            0.0 => WATCH_INTERVAL_DEFAULT,
            s => request::seconds("every_s", s)?.max(WATCH_INTERVAL_MIN),
        };
        let app = Arc::clone(&self.0);
        let statuses = stream::unfold(
            (app, caller, Duration::ZERO),
            move |(app, caller, wait)| async move {
                tokio::time::sleep(wait).await;
                let status = status(&app);
                Some((Ok(status), (app, caller, every)))
            },
        );
        Ok(Response::new(Box::pin(statuses)))
    }

    async fn timeline(
        &self,
        request: Request<v1::TimelineRequest>,
    ) -> GrpcResult<v1::TimelineReply> {
        let caller = self.caller(&request)?;
        caller.check_admin()?;
        let request = request.into_inner();
        let model = self.0.models.get(&request.model).await?;
        let recorded = model.call(caller.name(), move |worker| {
            Ok(match request.record {
                true => {
                    worker.record();
                    Default::default()
                }
                false => worker.end_record(),
            })
        });
        let (timeline, passes) = recorded.await?;
        Ok(Response::new(v1::TimelineReply {
            spans: timeline.events.into_iter().map(span).collect(),
            left_out: timeline.left_out,
            passes: passes.iter().map(pass).collect(),
        }))
    }
}

fn pass(pass: &PassStats) -> v1::Pass {
    v1::Pass {
        rows: pass.rows as u64,
        seconds: pass.seconds,
        link_bytes: pass.link_bytes,
        kv_bytes: pass.kv_bytes,
        link_s: pass.link_s,
        stall_s: pass.stall_s,
    }
}

fn span(event: TimelineEvent) -> v1::Span {
    let (lane, worker) = match event.lane {
        TimelineLane::Compute => ("compute", 0),
        TimelineLane::Wait => ("wait", 0),
        TimelineLane::Link(worker) => ("copy", worker),
    };
    v1::Span {
        lane: lane.to_owned(),
        name: event.name,
        start_s: event.start_s,
        seconds: event.seconds,
        bytes: event.bytes,
        worker: worker as u64,
    }
}

fn status(app: &App) -> v1::Status {
    let described = app.models.list(true);
    let readings = app.readings();
    let with_reading = |model: v1::Model| {
        let reading = readings.iter().find(|reading| reading.model == model.name);
        model_status(model, reading)
    };
    v1::Status {
        uptime_s: app.started.elapsed().as_secs_f64(),
        connections: app.metrics.open_connections(),
        requests: app.metrics.answered.load(Ordering::Relaxed),
        models: described.into_iter().map(with_reading).collect(),
        rss_bytes: rss_bytes().unwrap_or(0),
        device_bytes: device_bytes_used(app),
    }
}

fn model_status(model: v1::Model, reading: Option<&ModelReading>) -> v1::ModelStatus {
    let model = Some(model);
    let Some(reading) = reading else {
        return v1::ModelStatus {
            model,
            ..v1::ModelStatus::default()
        };
    };
    let snapshot = &reading.snapshot;
    let tier = |pages: TierUsage| {
        Some(v1::TierPages {
            used: pages.used as u64,
            cached: pages.cached as u64,
            total: pages.total as u64,
            page_bytes: reading.page_bytes,
            page_tokens: reading.page_tokens,
        })
    };
    let sessions = snapshot.sessions.iter();
    v1::ModelStatus {
        model,
        passes: snapshot.totals.passes,
        rows: snapshot.totals.rows,
        tokens: snapshot.totals.tokens,
        busy_s: snapshot.totals.busy_s,
        link_bytes: snapshot.totals.link_bytes,
        stalled_s: snapshot.totals.stalled_s,
        link_ceiling: reading.link_ceiling,
        device: tier(snapshot.pages.device),
        host: tier(snapshot.pages.host),
        disk: tier(snapshot.pages.disk),
        paged_out_bytes: snapshot.paged.copied_out.bytes,
        paged_in_bytes: snapshot.paged.copied_in.bytes,
        paged_streamed_bytes: snapshot.paged.streamed.bytes,
        sessions: sessions
            .map(|(state, count)| ((*state).to_owned(), *count))
            .collect(),
        adopted_tokens: snapshot.prefix.tokens_reused as u64,
        prefix_lookups: snapshot.prefix.lookups as u64,
        prefix_hits: snapshot.prefix.hits as u64,
    }
}
