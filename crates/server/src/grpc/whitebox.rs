//! The inside of a model over the protocol.

use std::{sync::Arc, time::Instant};

use djinn_engine::RunUntil;
use djinn_model::{
    hook::{self, Layout, Site},
    program::Program,
};
use djinn_wire::{
    numbers, parts,
    v1::{self, resume_request, white_box_server::WhiteBox},
};
use futures_util::stream;
use tonic::{Request, Response, Status};

use super::{
    Answers, Grpc,
    events::Events,
    sessions::{info, opened, seed_of, session},
};
use crate::{
    ServeError,
    app::{Caller, session_name},
    ask,
    host::{Turn, Worker},
};

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl WhiteBox for Grpc {
    type ActivationStream = Answers<v1::TensorPart>;
    type ResumeStream = Answers<v1::Event>;
    type RecallStream = Answers<v1::Event>;

    async fn hooks(&self, request: Request<v1::HooksRequest>) -> Reply<v1::HooksReply> {
        self.caller(&request)?;
        let asked = request.into_inner();
        let host = self.0.models.get(&asked.model).await?;
        let found = host.call(move |worker| {
            let program = &worker.engine.model().program;
            let pattern = match asked.pattern.as_str() {
                "" => "*",
                pattern => pattern,
            };
            let sites = hook::find(program, pattern).map_err(djinn_engine::EngineError::from)?;
            Ok(sites
                .into_iter()
                .map(|site| describe(program, site))
                .collect())
        });
        let hooks = found.await?;
        Ok(Response::new(v1::HooksReply { hooks }))
    }

    async fn activation(
        &self,
        request: Request<v1::ActivationRequest>,
    ) -> Reply<Self::ActivationStream> {
        let caller = self.caller(&request)?;
        let asked = request.into_inner();
        let (host, id) = self.0.session(&asked.session).await?;
        let (part, positions) = (ask::part(&asked.part)?, ask::positions(&asked.positions)?);
        let owner = caller.owner.name.clone();
        let read = host.call(move |worker| {
            let mut owned = worker.engine.as_owner(&owner);
            owned.renew(id)?;
            let at = owned.paused(id)?;
            let tensor = owned.activation_part(id, &part, &positions)?;
            Ok((at.map(|at| at.site.to_string()).unwrap_or_default(), tensor))
        });
        let (name, tensor) = read.await?;
        let parts = parts(&name, &tensor.shape, &tensor.data).map(move |part| {
            let _under_way = &caller;
            Ok(part)
        });
        Ok(Response::new(Box::pin(stream::iter(parts))))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Reply<Self::ResumeStream> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let asked = request.into_inner();
        let edits = ask::edits(asked.edits)?;
        let until = asked.until;
        let events = self.go_on(&asked.session, caller, move |worker, owner, id| {
            let until = until_of(&worker.engine.model().program, until)?;
            Ok(worker
                .engine
                .as_owner(owner)
                .go_on_from(id, &edits, until)?)
        });
        Ok(Response::new(Box::pin(events.await?)))
    }

    async fn recall(&self, request: Request<v1::SessionRequest>) -> Reply<Self::RecallStream> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let name = request.into_inner().session;
        let events = self.go_on(&name, caller, |worker, owner, id| {
            Ok(worker.engine.as_owner(owner).recall(id)?)
        });
        Ok(Response::new(Box::pin(events.await?)))
    }

    async fn set_breakpoints(
        &self,
        request: Request<v1::SetBreakpointsRequest>,
    ) -> Reply<v1::SetBreakpointsReply> {
        let caller = self.caller(&request)?;
        let asked = request.into_inner();
        let (host, id) = self.0.session(&asked.session).await?;
        let breaks = ask::breaks(&asked.breakpoints)?;
        let owner = caller.owner.name.clone();
        let set =
            host.call(move |worker| Ok(worker.engine.as_owner(&owner).set_breaks(id, &breaks)?));
        set.await?;
        Ok(Response::new(v1::SetBreakpointsReply {}))
    }

    async fn branch(&self, request: Request<v1::BranchRequest>) -> Reply<v1::BranchReply> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let asked = request.into_inner();
        let (count, most) = (asked.count as usize, self.0.config.limits.batch);
        if count > most {
            return Err(ServeError::TooLarge(format!(
                "{count} branches, of which {most} are made at once"
            ))
            .into());
        }
        let (host, id) = self.0.session(&asked.session).await?;
        let owner = caller.owner.name.clone();
        let branched = host.call(move |worker| {
            let branches = worker.engine.as_owner(&owner).branch(id, count)?;
            for branch in &branches {
                worker.adopt(*branch);
            }
            Ok(branches)
        });
        let branches = branched.await?;
        let sessions = branches
            .into_iter()
            .map(|id| session_name(&host, id))
            .collect();
        Ok(Response::new(v1::BranchReply { sessions }))
    }

    async fn branch_back(&self, request: Request<v1::BranchBackRequest>) -> Reply<v1::Session> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let asked = request.into_inner();
        let (host, id) = self.0.session(&asked.session).await?;
        let missing = || ServeError::Invalid("the residual is missing".to_owned());
        let (_, residual) =
            numbers(&asked.residual.ok_or_else(missing)?).map_err(ServeError::from)?;
        let owner = caller.owner.name.clone();
        let branched = host.call(move |worker| {
            let site = one_site(&worker.engine.model().program, &asked.hook)?;
            let mut owned = worker.engine.as_owner(&owner);
            let branch = owned.branch_back(id, site, asked.position as usize, &residual)?;
            worker.adopt(branch);
            info(worker, branch)
        });
        Ok(Response::new(session(&host, &branched.await?)))
    }
}

impl Grpc {
    /// Lets a session run that stopped, and follows it.
    async fn go_on(
        &self,
        name: &str,
        caller: Caller,
        go: impl FnOnce(&mut Worker, &str, djinn_engine::SessionId) -> Result<(), ServeError>
        + Send
        + 'static,
    ) -> Result<Events, ServeError> {
        let (host, id) = self.0.session(name).await?;
        let owner = caller.owner.name.clone();
        let gone = host.call(move |worker| {
            let since = Instant::now();
            go(worker, &owner, id)?;
            let (generated, seed) = (worker.engine.generated(id), seed_of(worker, id));
            Ok((generated, seed, worker.listen(id, since)))
        });
        let (generated, seed, told) = gone.await?;
        let turn = Turn::new(Arc::clone(&host), id, true, told);
        let first = opened(&host, id, 0, generated, seed);
        Ok(Events::new([first], Some(turn), host.words.clone(), caller))
    }
}

/// The only hook of a name.
fn one_site(program: &Program, name: &str) -> Result<Site, ServeError> {
    let sites = hook::find(program, name).map_err(djinn_engine::EngineError::from)?;
    match sites[..] {
        [site] => Ok(site),
        _ => Err(ServeError::Invalid(format!(
            "'{name}' names {} hooks, not one",
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
        Layout::Rows(width) => ("pos, width", vec![width]),
        Layout::Heads(heads, d_head) => ("pos, head, d_head", vec![heads, d_head]),
        Layout::Pattern(heads) => ("head, query, key", vec![heads]),
    };
    v1::Hook {
        name: site.to_string(),
        layout: layout.to_owned(),
        shape: shape.into_iter().map(|d| d as u64).collect(),
        stops: !matches!(site, Site::Pattern(_)),
    }
}
