//! The server itself over the protocol.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use djinn_device::host::rss_bytes;
use djinn_engine::TierUsage;
use djinn_weights::{Lane, Timeline, TimelineEvent};
use djinn_wire::v1::{self, server_server::Server};
use futures_util::stream;
use tonic::{Request, Response, Status};

use super::{Answers, Grpc};
use crate::{
    app::App,
    ask,
    machine::{machine, taken},
    metrics::Reading,
};

type Reply<T> = Result<Response<T>, Status>;

/// How often a server tells how it fares, at most.
const OFTEN: Duration = Duration::from_millis(50);

#[tonic::async_trait]
impl Server for Grpc {
    type WatchStream = Answers<v1::Status>;

    async fn capabilities(
        &self,
        request: Request<v1::CapabilitiesRequest>,
    ) -> Reply<v1::CapabilitiesReply> {
        let caller = self.caller(&request)?;
        Ok(Response::new(capabilities(&self.0, &caller.owner.name)))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let caller = self.caller(&request)?;
        let every = match request.into_inner().every_s {
            0.0 => Duration::from_secs(1),
            s => ask::seconds("every_s", s)?.max(OFTEN),
        };
        let app = Arc::clone(&self.0);
        let told = stream::unfold(
            (app, caller, Duration::ZERO),
            move |(app, caller, wait)| async move {
                tokio::time::sleep(wait).await;
                let status = status(&app).await;
                Some((Ok(status), (app, caller, every)))
            },
        );
        Ok(Response::new(Box::pin(told)))
    }

    async fn timeline(&self, request: Request<v1::TimelineRequest>) -> Reply<v1::TimelineReply> {
        self.caller(&request)?.check_admin()?;
        let asked = request.into_inner();
        let host = self.0.models.get(&asked.model).await?;
        let record = asked.record;
        let kept = host
            .call(move |worker| {
                Ok(match record {
                    true => {
                        worker.engine.record();
                        Timeline::default()
                    }
                    false => worker.engine.end_record(),
                })
            })
            .await?;
        Ok(Response::new(v1::TimelineReply {
            spans: kept.events.into_iter().map(span).collect(),
            left_out: kept.left_out,
        }))
    }
}

fn span(event: TimelineEvent) -> v1::Span {
    let lane = match event.lane {
        Lane::Compute => "compute",
        Lane::Wait => "wait",
        Lane::Link(_) => "copy",
    };
    v1::Span {
        lane: lane.to_owned(),
        name: event.name,
        start_s: event.start_s,
        seconds: event.seconds,
        bytes: event.bytes,
    }
}

/// What a server is and can do.
pub fn capabilities(app: &App, owner: &str) -> v1::CapabilitiesReply {
    let limits = &app.config.limits;
    let backend = &app.config.backend;
    let (device, device_detail) = (backend.name(), backend.detail());
    v1::CapabilitiesReply {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocols: vec!["djinn.v1".to_owned(), "openai.v1".to_owned()],
        node: app.config.node.clone(),
        device,
        device_detail,
        limits: Some(v1::Limits {
            message_bytes: limits.message_bytes as u64,
            prompt_tokens: app.config.layout.context.unwrap_or(0) as u64,
            upload_bytes: limits.upload_bytes,
            branches: limits.batch as u64,
            capture_bytes: limits.capture_bytes,
            lease_s: limits.lease.as_secs_f64(),
        }),
        owner: owner.to_owned(),
        durable: app.config.state.is_some(),
        machine: Some(machine(&app.config)),
    }
}

async fn status(app: &App) -> v1::Status {
    let described = app.models.list().await;
    let readings = app.readings().await;
    let of = |model: v1::Model| {
        let reading = readings.iter().find(|reading| reading.model == model.name);
        model_status(model, reading)
    };
    v1::Status {
        uptime_s: app.started.elapsed().as_secs_f64(),
        connections: app.metrics.connections.load(Ordering::Relaxed),
        requests: app.metrics.answered.load(Ordering::Relaxed),
        models: described.into_iter().map(of).collect(),
        rss_bytes: rss_bytes().unwrap_or(0),
        device_bytes: taken(app),
    }
}

fn model_status(model: v1::Model, reading: Option<&Reading>) -> v1::ModelStatus {
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
            total: pages.total as u64,
            page_bytes: reading.page_bytes,
            page_tokens: reading.page_tokens,
        })
    };
    let sessions = snapshot.sessions.iter();
    v1::ModelStatus {
        model,
        passes: snapshot.passes,
        rows: snapshot.rows,
        tokens: snapshot.tokens,
        busy_s: snapshot.busy_s,
        link_bytes: snapshot.link_bytes,
        stalled_s: snapshot.stalled_s,
        link_ceiling: reading.link_ceiling,
        device: tier(snapshot.pages.device),
        host: tier(snapshot.pages.host),
        disk: tier(snapshot.pages.disk),
        paged_out_bytes: snapshot.paged.copied_out.bytes,
        paged_in_bytes: snapshot.paged.copied_in.bytes,
        sessions: sessions
            .map(|(state, count)| ((*state).to_owned(), *count))
            .collect(),
        adopted_tokens: snapshot.adopted,
    }
}
