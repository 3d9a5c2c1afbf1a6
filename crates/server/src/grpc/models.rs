//! The models of the protocol.

use std::sync::Arc;

use djinn_engine::LoadProgress;
use djinn_wire::v1::{self, models_server::Models, register_event, tokenize_request::Input};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, Grpc};
use crate::{
    ServeError, ask,
    config::{Layout, ModelConfig},
    models::{FileOffer, Pushed, default_name},
};

/// Parts of a push that wait to be written.
const PARTS: usize = 8;

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Models for Grpc {
    type RegisterStream = Answers<v1::RegisterEvent>;

    async fn register(&self, request: Request<v1::RegisterRequest>) -> Reply<Self::RegisterStream> {
        let caller = self.caller(&request)?;
        caller.check_admin()?;
        self.0.check_serving()?;
        let asked = request.into_inner();
        let model = ModelConfig {
            name: match asked.name.as_str() {
                "" => default_name(&asked.reference),
                name => name.to_owned(),
            },
            layout: layout(asked.limits),
            reference: asked.reference,
        };
        // What cannot be found is said before anything is known by its name.
        self.0.models.resolve(&model.reference, false)?;
        let name = model.name.clone();
        self.0.models.add(model, false)?;
        let (events, told) = mpsc::channel(16);
        let (app, progress) = (Arc::clone(&self.0), events.clone());
        tokio::spawn(async move {
            let _under_way = caller;
            let tell = move |p: LoadProgress| {
                let loading = v1::LoadProgress {
                    loaded_bytes: p.loaded,
                    total_bytes: p.total,
                };
                let what = Some(register_event::What::Loading(loading));
                // Whoever is slow misses some.
                let _ = progress.try_send(Ok(v1::RegisterEvent { what }));
            };
            let loaded = app.models.get_with(&name, tell).await;
            let last = match loaded {
                Ok(_) => app.models.describe(&name).await,
                Err(error) => Err(error),
            };
            let last = last.map(|model| v1::RegisterEvent {
                what: Some(register_event::What::Ready(model)),
            });
            let _ = events.send(last.map_err(Status::from)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(told))))
    }

    async fn list(&self, request: Request<v1::ListModelsRequest>) -> Reply<v1::ListModelsReply> {
        self.caller(&request)?;
        let models = self.0.models.list().await;
        Ok(Response::new(v1::ListModelsReply { models }))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Reply<v1::PlanReply> {
        self.caller(&request)?.check_admin()?;
        let asked = request.into_inner();
        let plan = self
            .0
            .models
            .plan(&asked.reference, layout(asked.limits), false)
            .await?;
        Ok(Response::new(plan))
    }

    async fn unload(&self, request: Request<v1::UnloadRequest>) -> Reply<v1::UnloadReply> {
        self.caller(&request)?.check_admin()?;
        let asked = request.into_inner();
        self.0
            .models
            .unload(&asked.name, asked.force, asked.forget)
            .await?;
        Ok(Response::new(v1::UnloadReply {}))
    }

    async fn offer(&self, request: Request<v1::OfferRequest>) -> Reply<v1::OfferReply> {
        self.caller(&request)?.check_admin()?;
        let files = request.into_inner().files;
        let files: Result<Vec<FileOffer>, ServeError> = files.into_iter().map(file_offer).collect();
        let files = files?;
        let lengths: Vec<u64> = files.iter().map(|file| file.bytes).collect();
        let offer = self.0.models.pushed.offer(files)?;
        let complete = offer.have == lengths;
        if complete {
            self.0
                .models
                .pushed
                .finish(&self.0.models.pushed.offered(&offer.push)?)?;
        }
        Ok(Response::new(v1::OfferReply {
            push: offer.push,
            have: offer.have,
            complete,
        }))
    }

    async fn push(&self, request: Request<Streaming<v1::PushPart>>) -> Reply<v1::PushReply> {
        self.caller(&request)?.check_admin()?;
        self.0.check_serving()?;
        let patience = self.0.config.limits.patience;
        let mut parts = request.into_inner();
        let (to_disk, queue) = mpsc::channel(PARTS);
        let store = Arc::clone(&self.0.models.pushed);
        let writer = tokio::task::spawn_blocking(move || write(&store, queue));
        let late = || ServeError::Timeout("no part of the push came in time".to_owned());
        loop {
            let part = tokio::time::timeout(patience, parts.message())
                .await
                .map_err(|_| late())?;
            let Some(part) = part? else { break };
            // Where the writer has given up, it says why.
            if to_disk.send(part).await.is_err() {
                break;
            }
        }
        drop(to_disk);
        let written = writer
            .await
            .map_err(|error| ServeError::Internal(error.to_string()))?;
        let (push, received_bytes) = written?;
        let reference = format!("pushed:{push}");
        Ok(Response::new(v1::PushReply {
            reference,
            received_bytes,
        }))
    }

    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Reply<v1::TokenizeReply> {
        self.caller(&request)?;
        let asked = request.into_inner();
        let host = self.0.models.get(&asked.model).await?;
        let tokens = match asked.input {
            Some(Input::Text(text)) if asked.plain => host.words.encode_more(&text)?,
            Some(Input::Text(text)) => host.words.encode(&text)?,
            Some(Input::Chat(chat)) => host
                .words
                .encode_chat(&ask::messages(&chat), Default::default())?,
            None => {
                return Err(ServeError::Invalid(
                    "what is to be tokenized? text or chat".to_owned(),
                )
                .into());
            }
        };
        Ok(Response::new(v1::TokenizeReply { tokens }))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Reply<v1::DetokenizeReply> {
        self.caller(&request)?;
        let asked = request.into_inner();
        let host = self.0.models.get(&asked.model).await?;
        let text = host
            .words
            .tokenizer()?
            .decode(&asked.tokens, !asked.special);
        let text = text.map_err(ServeError::from)?;
        let pieces = match asked.each {
            true => asked
                .tokens
                .iter()
                .map(|&token| host.words.piece(token))
                .collect(),
            false => Vec::new(),
        };
        Ok(Response::new(v1::DetokenizeReply { text, pieces }))
    }
}

fn layout(limits: Option<v1::ModelLimits>) -> Layout {
    let limits = limits.unwrap_or_default();
    let said = |n: u64| (n > 0).then_some(n as usize);
    Layout {
        memory: (limits.memory_bytes > 0).then_some(limits.memory_bytes),
        context: said(limits.context),
        batch: said(limits.batch),
        sessions: said(limits.sessions),
        rows: said(limits.rows),
        prefetch: limits.no_prefetch.then_some(false),
        resident: (limits.resident_bytes > 0).then_some(limits.resident_bytes),
    }
}

fn file_offer(file: v1::PushFile) -> Result<FileOffer, ServeError> {
    let hash = <[u8; 32]>::try_from(&file.hash[..]).map_err(|_| {
        ServeError::Invalid(format!(
            "the hash of {} is not 32 bytes",
            file.name.escape_debug()
        ))
    })?;
    Ok(FileOffer {
        name: file.name,
        bytes: file.bytes,
        hash,
    })
}

/// Writes what comes, file after file, and gives the model's name and how many bytes came.
fn write(
    store: &Arc<Pushed>,
    mut parts: mpsc::Receiver<v1::PushPart>,
) -> Result<(String, u64), ServeError> {
    let mut files = None;
    let mut current: Option<(u32, crate::models::Writing)> = None;
    let mut received = 0;
    while let Some(part) = parts.blocking_recv() {
        let files = match &files {
            Some(files) => files,
            None => files.insert(store.offered(&part.push)?),
        };
        if current.as_ref().is_none_or(|(file, _)| *file != part.file) {
            if let Some((_, before)) = current.take() {
                before.finish()?;
            }
            let file = files.get(part.file as usize);
            let file = file.ok_or_else(|| {
                ServeError::Invalid(format!(
                    "file {} of {} that were offered",
                    part.file,
                    files.len()
                ))
            })?;
            current = Some((part.file, store.write(file)?));
        }
        let (_, writing) = current.as_mut().expect("one is open");
        writing.take(part.offset, &part.data)?;
        received += part.data.len() as u64;
    }
    if let Some((_, last)) = current {
        last.finish()?;
    }
    let files = files.ok_or_else(|| ServeError::Invalid("nothing was pushed".to_owned()))?;
    Ok((store.finish(&files)?, received))
}
