//! Service `Models`: register, plan, unload and push models; tokenize.

use std::sync::Arc;

use djinn_engine::LoadProgress;
use djinn_wire::v1::{self, models_server::Models, register_event, tokenize_request::Input};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::service::{GrpcResult, GrpcService, GrpcStream};
use crate::{
    ServeError,
    config::{LoadOptions, ServedModel},
    registry::{FileOffer, PushStore, PushWriter, default_name},
    request,
};

/// Number of parts of a push that may wait to be written.
const QUEUED_PARTS_MAX: usize = 8;

#[tonic::async_trait]
impl Models for GrpcService {
    type RegisterStream = GrpcStream<v1::RegisterEvent>;

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> GrpcResult<Self::RegisterStream> {
        let caller = self.caller(&request)?;
        caller.check_admin()?;
        self.0.check_serving()?;
        let request = request.into_inner();
        let model = ServedModel {
            name: match request.name.as_str() {
                "" => default_name(&request.reference),
                name => name.to_owned(),
            },
            layout: layout(request.limits)?,
            reference: request.reference,
        };
        let name = model.name.clone();
        let target = format!("{name} = {}", model.reference);
        let added = self.add(model);
        self.0.audit.record(&caller, "register", &target, &added);
        added?;
        let (events, received) = mpsc::channel(16);
        let (app, progress) = (Arc::clone(&self.0), events.clone());
        tokio::spawn(async move {
            let _in_flight = caller;
            let report = move |p: LoadProgress| {
                let loading = v1::LoadProgress {
                    loaded_bytes: p.loaded,
                    total_bytes: p.total,
                };
                let what = Some(register_event::What::Loading(loading));
                // A slow client may miss some progress messages.
                let _ = progress.try_send(Ok(v1::RegisterEvent { what }));
            };
            let loaded = app.models.get_with(&name, report).await;
            let last = match loaded {
                Ok(_) => app.models.describe(&name, true),
                Err(error) => Err(error),
            };
            let last = last.map(|model| v1::RegisterEvent {
                what: Some(register_event::What::Ready(model)),
            });
            let _ = events.send(last.map_err(Status::from)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(received))))
    }

    async fn list(
        &self,
        request: Request<v1::ListModelsRequest>,
    ) -> GrpcResult<v1::ListModelsReply> {
        let caller = self.caller(&request)?;
        let models = self.0.models.list(caller.owner.admin);
        Ok(Response::new(v1::ListModelsReply { models }))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> GrpcResult<v1::PlanReply> {
        self.caller(&request)?.check_admin()?;
        let request = request.into_inner();
        for (name, rate) in [
            ("link_bytes_per_s", request.link_bytes_per_s),
            ("compute_bytes_per_s", request.compute_bytes_per_s),
        ] {
            if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
                let message = format!("{name} must be a finite number above 0");
                return Err(ServeError::Invalid(message).into());
            }
        }
        let limits = layout(request.limits)?;
        let plan = self.0.models.plan(request, limits, false).await?;
        Ok(Response::new(plan))
    }

    async fn unload(&self, request: Request<v1::UnloadRequest>) -> GrpcResult<v1::UnloadReply> {
        let caller = self.caller(&request)?;
        caller.check_admin()?;
        let request = request.into_inner();
        let models = &self.0.models;
        let unloaded = models
            .unload(&request.name, request.force, request.forget)
            .await;
        self.0
            .audit
            .record(&caller, "unload", &request.name, &unloaded);
        unloaded?;
        Ok(Response::new(v1::UnloadReply {}))
    }

    async fn offer(&self, request: Request<v1::OfferRequest>) -> GrpcResult<v1::OfferReply> {
        let caller = self.caller(&request)?;
        caller.check_admin()?;
        let files = request.into_inner().files;
        let files: Result<Vec<FileOffer>, ServeError> = files.into_iter().map(file_offer).collect();
        let (files, pushed) = (files?, Arc::clone(&self.0.models.pushed));
        // The store reads and writes files.
        let offered = self.0.offload.run(caller.name(), usize::MAX, move || {
            let lengths: Vec<u64> = files.iter().map(|file| file.bytes).collect();
            let offer = pushed.offer(files)?;
            let complete = offer.have == lengths;
            if complete {
                pushed.finish(&pushed.offered(&offer.push)?)?;
            }
            Ok::<_, ServeError>((offer, complete))
        });
        let (offer, complete) = offered.await??;
        Ok(Response::new(v1::OfferReply {
            push: offer.push,
            have: offer.have,
            complete,
        }))
    }

    async fn push(&self, request: Request<Streaming<v1::PushPart>>) -> GrpcResult<v1::PushReply> {
        let caller = self.caller(&request)?;
        caller.check_admin()?;
        self.0.check_serving()?;
        let patience = self.0.config.limits.patience;
        let mut parts = request.into_inner();
        let (to_disk, queue) = mpsc::channel(QUEUED_PARTS_MAX);
        let store = Arc::clone(&self.0.models.pushed);
        let writer = tokio::task::spawn_blocking(move || write(&store, queue));
        let late = || {
            ServeError::SlowClient(format!(
                "The next part of the push did not arrive within {} s",
                patience.as_secs_f64()
            ))
        };
        loop {
            let part = tokio::time::timeout(patience, parts.message())
                .await
                .map_err(|_| late())?;
            let Some(part) = part? else { break };
            // A failed writer returns its error below.
            if to_disk.send(part).await.is_err() {
                break;
            }
        }
        drop(to_disk);
        let written = writer
            .await
            .map_err(|error| ServeError::Internal(error.to_string()))?;
        let pushed = written.as_ref().map_or("", |(push, _)| push);
        self.0.audit.record(&caller, "push", pushed, &written);
        let (push, received_bytes) = written?;
        let reference = format!("pushed:{push}");
        Ok(Response::new(v1::PushReply {
            reference,
            received_bytes,
        }))
    }

    async fn tokenize(
        &self,
        request: Request<v1::TokenizeRequest>,
    ) -> GrpcResult<v1::TokenizeReply> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let model = self.0.models.get(&request.model).await?;
        let Some(input) = request.input else {
            let error = "input is missing: send text or chat";
            return Err(ServeError::Invalid(error.to_owned()).into());
        };
        let bytes = match &input {
            Input::Text(text) => text.len(),
            Input::Chat(chat) => chat.messages.iter().map(|m| m.content.len()).sum(),
        };
        request::check_tokenize(bytes)?;
        let (tokenizer, is_plain) = (model.tokenizer.clone(), request.plain);
        let tokens = self
            .0
            .offload
            .run(caller.name(), bytes, move || match input {
                Input::Text(text) if is_plain => Ok(tokenizer.tokenizer()?.encode_plain(&text)?),
                Input::Text(text) => Ok(tokenizer.tokenizer()?.encode(&text)?),
                Input::Chat(chat) => {
                    let messages = request::chat_messages(&chat);
                    tokenizer.encode_chat(&messages, Default::default())
                }
            });
        let tokens: Result<Vec<u32>, ServeError> = tokens.await?;
        Ok(Response::new(v1::TokenizeReply { tokens: tokens? }))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> GrpcResult<v1::DetokenizeReply> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        request::check_detokenize(request.tokens.len())?;
        let model = self.0.models.get(&request.model).await?;
        let tokenizer = model.tokenizer.clone();
        let bytes = request.tokens.len() * size_of::<u32>();
        let decoded = self.0.offload.run(caller.name(), bytes, move || {
            let tokens = &request.tokens;
            let text = tokenizer.tokenizer()?.decode(tokens, !request.special)?;
            let pieces = match request.each {
                true => tokens.iter().map(|&token| tokenizer.piece(token)).collect(),
                false => Vec::new(),
            };
            Ok::<_, ServeError>(v1::DetokenizeReply { text, pieces })
        });
        Ok(Response::new(decoded.await??))
    }
}

impl GrpcService {
    /// Registers a model. A reference that cannot be resolved does not occupy a name.
    fn add(&self, model: ServedModel) -> Result<(), ServeError> {
        self.0.models.sources().resolve(&model.reference, false)?;
        self.0.models.add(model, false)
    }
}

fn layout(limits: Option<v1::ModelLimits>) -> Result<LoadOptions, ServeError> {
    let limits = limits.unwrap_or_default();
    let set = |n: u64| (n > 0).then_some(n as usize);
    let kv_dtype = v1::KvDtype::try_from(limits.kv_dtype).map_err(|_| {
        let number = limits.kv_dtype;
        ServeError::Invalid(format!("kv_dtype is {number}, which names no type"))
    })?;
    Ok(LoadOptions {
        memory: (limits.memory_bytes > 0).then_some(limits.memory_bytes),
        context: set(limits.context),
        batch: set(limits.batch),
        sessions: set(limits.sessions),
        rows: set(limits.rows),
        prefetch: limits.no_prefetch.then_some(false),
        resident: (limits.resident_bytes > 0).then_some(limits.resident_bytes),
        kv_dtype: kv_dtype.choice(),
    })
}

fn file_offer(file: v1::PushFile) -> Result<FileOffer, ServeError> {
    let hash = <[u8; 32]>::try_from(&file.hash[..]).map_err(|_| {
        ServeError::Invalid(format!(
            "The hash of {} is not 32 bytes long",
            file.name.escape_debug()
        ))
    })?;
    Ok(FileOffer {
        name: file.name,
        bytes: file.bytes,
        hash,
    })
}

/// Writes the parts of a push, and returns the model's id and the number of bytes received.
fn write(
    store: &Arc<PushStore>,
    mut parts: mpsc::Receiver<v1::PushPart>,
) -> Result<(String, u64), ServeError> {
    let mut files = None;
    let mut current: Option<(u32, PushWriter)> = None;
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
                    "The part belongs to file {}, but the client offered {} files, numbered from 0",
                    part.file,
                    files.len()
                ))
            })?;
            current = Some((part.file, PushWriter::open(store, file)?));
        }
        let (_, writing) = current.as_mut().expect("a file is open");
        writing.take(part.offset, &part.data)?;
        received += part.data.len() as u64;
    }
    if let Some((_, last)) = current {
        last.finish()?;
    }
    let files = files.ok_or_else(|| ServeError::Invalid("The push has no parts".to_owned()))?;
    Ok((store.finish(&files)?, received))
}
