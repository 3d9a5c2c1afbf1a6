//! Service `WhiteBox`: hooks, activations, breakpoints and branches.

use std::{sync::Arc, time::Instant};

use djinn_engine::RunUntil;
use djinn_model::{Site, SiteLayout, hook, program::Program};
use djinn_wire::{
    numbers, parts,
    v1::{self, resume_request, white_box_server::WhiteBox},
};
use futures_util::stream;
use prost::Message;
use tonic::{Request, Response};

use super::{
    events::EventMessages,
    service::{GrpcResult, GrpcService, GrpcStream},
    session_info::{SessionSnapshot, opened, seed_of},
};
use crate::{
    ServeError,
    app::session_name,
    auth::Caller,
    engine_thread::{TurnStream, Worker},
    request,
};

#[tonic::async_trait]
impl WhiteBox for GrpcService {
    type ActivationStream = GrpcStream<v1::TensorPart>;
    type ResumeStream = GrpcStream<v1::Event>;
    type RecallStream = GrpcStream<v1::Event>;

    async fn hooks(&self, request: Request<v1::HooksRequest>) -> GrpcResult<v1::HooksReply> {
        self.caller(&request)?;
        let request = request.into_inner();
        let pattern = match request::hook_name(&request.pattern)? {
            "" => "*",
            pattern => pattern,
        };
        let model = self.0.models.get(&request.model).await?;
        let program = model.facts.checker.program();
        let sites = hook::find(program, pattern).map_err(djinn_engine::EngineError::from);
        let sites = sites.map_err(ServeError::from)?.into_iter();
        let hooks = sites.map(|site| describe(program, site)).collect();
        Ok(Response::new(v1::HooksReply { hooks }))
    }

    async fn activation(
        &self,
        request: Request<v1::ActivationRequest>,
    ) -> GrpcResult<Self::ActivationStream> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let (model, id) = self.0.session(&request.session).await?;
        let (part, positions) = (
            request::part(&request.part)?,
            request::positions(&request.positions)?,
        );
        let owner = caller.name().to_owned();
        let read = model.call(caller.name(), move |worker| {
            let mut session = worker.engine.session(&owner, id)?;
            session.renew();
            let at = session.view().paused();
            let tensor = session.activation_part(&part, &positions)?;
            Ok((at.map(|at| at.site.to_string()).unwrap_or_default(), tensor))
        });
        let (name, tensor) = read.await?;
        let parts = parts(&name, &tensor.shape, &tensor.data).map(move |part| {
            let _in_flight = &caller;
            Ok(part)
        });
        Ok(Response::new(Box::pin(stream::iter(parts))))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> GrpcResult<Self::ResumeStream> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let request = request.into_inner();
        let (session, until) = (request.session, request.until);
        let bytes = request.edits.iter().map(Message::encoded_len).sum();
        let edits = request.edits;
        let edits = self
            .0
            .offload
            .run(caller.name(), bytes, move || request::edits(edits));
        let edits = edits.await??;
        if let Some(resume_request::Until::Hook(name)) = &until {
            request::hook_name(name)?;
        }
        let events = self.continue_stopped(&session, caller, move |worker, owner, id| {
            let until = until_of(&worker.engine.model().program, until)?;
            Ok(worker
                .engine
                .session(owner, id)?
                .resume_with(&edits, until)?)
        });
        Ok(Response::new(Box::pin(events.await?)))
    }

    async fn recall(&self, request: Request<v1::SessionRequest>) -> GrpcResult<Self::RecallStream> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let name = request.into_inner().session;
        let events = self.continue_stopped(&name, caller, |worker, owner, id| {
            Ok(worker.engine.session(owner, id)?.recall()?)
        });
        Ok(Response::new(Box::pin(events.await?)))
    }

    async fn set_breakpoints(
        &self,
        request: Request<v1::SetBreakpointsRequest>,
    ) -> GrpcResult<v1::SetBreakpointsReply> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let (model, id) = self.0.session(&request.session).await?;
        let breaks = request::breakpoints(&request.breakpoints)?;
        let owner = caller.name().to_owned();
        let set = model.call(caller.name(), move |worker| {
            Ok(worker
                .engine
                .session(&owner, id)?
                .set_breakpoints(&breaks)?)
        });
        set.await?;
        Ok(Response::new(v1::SetBreakpointsReply {}))
    }

    async fn branch(&self, request: Request<v1::BranchRequest>) -> GrpcResult<v1::BranchReply> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let request = request.into_inner();
        let (count, limit) = (request.count as usize, self.0.config.limits.batch);
        if count > limit {
            let error = format!(
                "The request asks for {count} branches, but the limit is {limit}; request fewer"
            );
            return Err(ServeError::out_of_range("count", error).into());
        }
        let (model, id) = self.0.session(&request.session).await?;
        let owner = caller.name().to_owned();
        let branched = model.call(caller.name(), move |worker| {
            let branches = worker.engine.session(&owner, id)?.branch(count)?;
            for branch in &branches {
                worker.adopt(*branch);
            }
            Ok(branches)
        });
        let branches = branched.await?;
        let sessions = branches
            .into_iter()
            .map(|id| session_name(&model, id))
            .collect();
        Ok(Response::new(v1::BranchReply { sessions }))
    }

    async fn branch_back(
        &self,
        request: Request<v1::BranchBackRequest>,
    ) -> GrpcResult<v1::Session> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let request = request.into_inner();
        let (model, id) = self.0.session(&request.session).await?;
        let missing = || {
            ServeError::Invalid("residual is missing: send one row for each position".to_owned())
        };
        request::hook_name(&request.hook)?;
        let residual = request.residual.ok_or_else(missing)?;
        let bytes = residual.encoded_len();
        let residual = self
            .0
            .offload
            .run(caller.name(), bytes, move || numbers(&residual));
        let (_, residual) = residual.await?.map_err(ServeError::from)?;
        let owner = caller.name().to_owned();
        let branched = model.call(caller.name(), move |worker| {
            let site = one_site(&worker.engine.model().program, &request.hook)?;
            let mut session = worker.engine.session(&owner, id)?;
            let branch = session.branch_back(site, request.position as usize, &residual)?;
            worker.adopt(branch);
            SessionSnapshot::of(worker, branch)
        });
        Ok(Response::new(branched.await?.message(&model)))
    }
}

impl GrpcService {
    /// Continues a paused session, and follows its turn.
    async fn continue_stopped(
        &self,
        name: &str,
        caller: Caller,
        go: impl FnOnce(&mut Worker, &str, djinn_engine::SessionId) -> Result<(), ServeError>
        + Send
        + 'static,
    ) -> Result<EventMessages, ServeError> {
        let (model, id) = self.0.session(name).await?;
        let owner = caller.name().to_owned();
        let started = model.call(caller.name(), move |worker| {
            let since = Instant::now();
            go(worker, &owner, id)?;
            let (generated, seed) = (
                worker
                    .engine
                    .view(id)
                    .map_or(0, |session| session.generated()),
                seed_of(worker, id),
            );
            Ok((generated, seed, worker.subscribe(id, since)))
        });
        let (generated, seed, events) = started.await?;
        caller.context.set_model(&model.name);
        let turn = TurnStream::new(Arc::clone(&model), id, true, events, &caller.context);
        let first = opened(&model, id, 0, generated, seed);
        Ok(EventMessages::new(
            [first],
            Some(turn),
            model.tokenizer.clone(),
            caller,
        ))
    }
}

/// Resolves a name to exactly one hook.
fn one_site(program: &Program, name: &str) -> Result<Site, ServeError> {
    let sites = hook::find(program, name).map_err(djinn_engine::EngineError::from)?;
    match sites[..] {
        [site] => Ok(site),
        _ => Err(ServeError::Invalid(format!(
            "'{name}' matches {} hooks, but must match exactly one; write the full name of a hook",
            sites.len()
        ))),
    }
}

fn until_of(
    program: &Program,
    until: Option<resume_request::Until>,
) -> Result<RunUntil, ServeError> {
    Ok(match until {
        None | Some(resume_request::Until::Breakpoint(_)) => RunUntil::Breakpoint,
        Some(resume_request::Until::NextHook(_)) => RunUntil::Hook,
        Some(resume_request::Until::NextBlock(_)) => RunUntil::Block,
        Some(resume_request::Until::Hook(name)) => RunUntil::Site(one_site(program, &name)?),
    })
}

fn describe(program: &Program, site: Site) -> v1::Hook {
    let (layout, shape) = match site.layout(&program.dims) {
        SiteLayout::Rows(width) => ("pos, width", vec![width]),
        SiteLayout::Heads(heads, d_head) => ("pos, head, d_head", vec![heads, d_head]),
        SiteLayout::Pattern(heads) => ("head, query, key", vec![heads]),
    };
    v1::Hook {
        name: site.to_string(),
        layout: layout.to_owned(),
        shape: shape.into_iter().map(|d| d as u64).collect(),
        stops: !matches!(site, Site::Pattern(_)),
    }
}
