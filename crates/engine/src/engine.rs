//! The engine: a loaded model, its sessions, and the pass that serves them.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_device::{Device, DeviceInfo, Order, View, Weight};
use djinn_memory::{OutOfPages, PageTable};
use djinn_model::{
    Model,
    program::{Op, Program, TensorId},
};

use crate::{
    Backend, Blueprint, Captured, EngineError, Finish, Footprint, Logprob, Paged, PassStats,
    Request, SessionId, Timeline, Transcript,
    batch::Batch,
    pager::Pager,
    pass::{Last, Pass, Scores, upload_ids, upload_numbers},
    sampler::{self, Choice},
    schedule::Account,
    session::{Session, State},
    settings,
    stream::{self, Recorder, Streamer},
    text::TextStream,
};

/// How long before a session is expected its pages come back: a gigabyte takes about a
/// tenth of a second to a card.
const AHEAD: Duration = Duration::from_millis(300);

/// How far loading has come.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Bytes in place.
    pub loaded: u64,
    /// Bytes of all weights that will be.
    pub total: u64,
}

/// What a pass gave one session.
#[derive(Clone, Debug)]
pub struct Output {
    /// Whose.
    pub session: SessionId,
    /// The token it generated; `None` while its prompt is still running, or where it
    /// was to generate none.
    pub token: Option<u32>,
    /// The text this released: whole characters, no part of a stop string.
    pub text: String,
    /// The token and its alternatives, when asked for.
    pub logprobs: Vec<Logprob>,
    /// Set when the session is over, or its turn where it is kept.
    pub finish: Option<Finish>,
}

/// A model on a device, and its sessions.
pub struct Engine {
    /// First, so that its threads end before what they use.
    streamer: Box<dyn Streamer>,
    recorder: Arc<Recorder>,
    device: Arc<dyn Device>,
    model: Model,
    pub(crate) blueprint: Blueprint,
    pub(crate) pager: Pager,
    last_pass: Option<PassStats>,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// Where the first in the order of sessions stood last.
    pub(crate) clock: u64,
    next_id: u64,
}

impl Engine {
    /// Takes the slab of a blueprint and brings in the weights that stay.
    pub fn load(
        model: Model,
        backend: &Backend,
        blueprint: Blueprint,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        blueprint.check(backend)?;
        let device = backend.open(blueprint.footprint().slab(), blueprint.scratch())?;
        let recorder = Arc::new(Recorder::new(blueprint.labels()));
        let mut streamer = stream::start(&blueprint, &device, &model.weights, &recorder)?;
        let experts = blueprint.resident_experts(model.program.dims.experts);
        let total = blueprint.load_bytes();
        streamer.load(&blueprint, &experts, &mut |loaded| {
            progress(LoadProgress { loaded, total });
        })?;
        device.loaded();
        for weight in expected(&model.program) {
            device.expect(weight)?;
        }
        let arena = &blueprint.arena;
        if let Some(rope) = &model.program.rope {
            upload_numbers(&*device, arena.frequencies, &rope.frequencies)?;
        }
        let numbers: Vec<i32> = (0..arena.row_numbers.rows as i32).collect();
        upload_ids(&*device, arena.row_numbers, &numbers)?;
        let host_pages = blueprint.settings.host_pages;
        Ok(Engine {
            pager: Pager::new(&device, arena.kv(0), host_pages)?,
            streamer,
            recorder,
            device,
            model,
            blueprint,
            sessions: BTreeMap::new(),
            clock: 0,
            next_id: 0,
            last_pass: None,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The device.
    pub fn device(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Where the slab's bytes went.
    pub fn footprint(&self) -> Footprint {
        self.blueprint.footprint()
    }

    /// What was decided before loading.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// What the last pass cost.
    pub fn last_pass(&self) -> Option<PassStats> {
        self.last_pass
    }

    /// Keeps a record of copies, waits and products from now on.
    pub fn record(&self) {
        self.recorder.turn_on();
    }

    /// The record.
    pub fn timeline(&self) -> Timeline {
        self.recorder.timeline()
    }

    /// What pages of KV went to host memory and came back; waits for those under way.
    pub fn paged(&mut self) -> Result<Paged, EngineError> {
        self.pager.paged()
    }

    /// Takes a session in; it runs as soon as its turn comes.
    pub fn open(&mut self, request: Request) -> Result<SessionId, EngineError> {
        let program = &self.model.program;
        settings::check(&self.model, &request)?;
        self.check_limits(&request)?;
        let positions = settings::positions(program, &request);
        let text = self.text(&request.tokens, &request.stop);
        let settings = &self.blueprint.settings;
        let pages = PageTable::new(settings.page_tokens);
        // Who is kept may come to all that one session can.
        let positions = if request.keep {
            settings.context
        } else {
            positions
        };
        let (pages_most, total) = (pages.missing(positions), settings.pages);
        if pages_most > total {
            let (wanted, free) = (pages_most, total);
            return Err(OutOfPages {
                wanted,
                free,
                total,
            }
            .into());
        }
        let id = SessionId(self.next_id);
        self.next_id += 1;
        let session = Session {
            id,
            prompt: request.tokens.len(),
            given: std::iter::once(0..request.tokens.len()).collect(),
            tokens: request.tokens,
            computed: 0,
            max_tokens: request.max_tokens,
            keep: request.keep,
            context: match request.keep {
                true => program.dims.context.min(settings.context),
                false => program.dims.context,
            },
            pages,
            arriving: None,
            pages_most,
            admitted: false,
            account: Account::new(request.class, self.clock),
            sampling: request.sampling,
            eos: request.eos,
            stop: request.stop,
            text,
            logprobs: Vec::new(),
            probe: request.probe,
            captured: Captured::default(),
            state: State::Ready,
        };
        self.sessions.insert(id, session);
        Ok(id)
    }

    /// Refuses what this engine was not laid out for.
    fn check_limits(&self, request: &Request) -> Result<(), EngineError> {
        let limits = &self.blueprint.settings;
        let dims = &self.model.program.dims;
        let pattern = request.probe.touches_pattern();
        let positions = settings::positions(&self.model.program, request);
        let wants = [
            ("sessions", self.sessions.len() + 1, limits.open),
            ("positions of a session", positions, limits.context),
            (
                "keys of an attention pattern",
                if pattern { positions } else { 0 },
                limits.pattern_keys,
            ),
            (
                "width of an edit's operand",
                request.probe.operand_width(dims),
                limits.operand_width,
            ),
        ];
        for (what, asked, limit) in wants {
            if asked > limit {
                return Err(EngineError::Limit { what, asked, limit });
            }
        }
        Ok(())
    }

    /// Ends a session at any point and returns what it came to.
    pub fn close(&mut self, id: SessionId) -> Option<Transcript> {
        let mut session = self.sessions.remove(&id)?;
        self.pager.release(&mut session.pages);
        let finish = match session.state {
            State::Done(finish) => Some(finish),
            State::Ready | State::Waiting { .. } => None,
        };
        let (_, generated) = session.apart();
        session.tokens.truncate(session.prompt);
        Some(Transcript {
            prompt: session.tokens,
            generated,
            logprobs: session.logprobs,
            finish,
            captured: session.captured,
        })
    }

    /// A session waits for its owner from now on, who may say when to expect it back, or
    /// say so again. Its pages go at once, as far as there is room for them, unless it is
    /// back in a moment.
    pub fn wait(&mut self, id: SessionId, expected: Option<Instant>) -> Result<(), EngineError> {
        let state = self.sessions.get(&id).map(|session| session.state);
        let from = match state {
            Some(waiting @ State::Waiting { .. }) => waiting,
            _ => State::Ready,
        };
        self.change(id, from, State::Waiting { expected })?;
        if expected.is_some_and(|at| at <= Instant::now() + AHEAD) {
            return Ok(());
        }
        self.send_away(id, usize::MAX)
    }

    /// Tells a session that waits something, and lets it generate up to so many more tokens.
    /// Only what is new is computed.
    pub fn say(
        &mut self,
        id: SessionId,
        tokens: &[u32],
        max_tokens: usize,
    ) -> Result<(), EngineError> {
        let session = self.sessions.get(&id).ok_or(EngineError::NoSession(id))?;
        settings::check_tokens(&self.model.program, tokens)?;
        if !session.keep {
            return Err(EngineError::NotKept(id));
        }
        let prompt = session.tokens.len() + tokens.len();
        let context = session.context;
        if prompt > context {
            return Err(EngineError::PromptTooLong { prompt, context });
        }
        self.resume(id)?;
        let session = self.sessions.get_mut(&id).expect("it was resumed");
        let start = session.tokens.len();
        session.tokens.extend(tokens);
        if !tokens.is_empty() {
            session.given.push(start..session.tokens.len());
        }
        session.max_tokens = session.generated() + max_tokens;
        let (all, stop) = (session.tokens.clone(), session.stop.clone());
        let text = self.text(&all, &stop);
        self.sessions.get_mut(&id).expect("as above").text = text;
        Ok(())
    }

    /// What makes text of the tokens that come after these.
    fn text(&self, tokens: &[u32], stop: &[String]) -> Option<TextStream> {
        let text = self.model.text.as_ref()?;
        Some(TextStream::new(text.decoder(tokens, true), stop.to_vec()))
    }

    /// Brings pages of sessions back that are expected within a moment, as far as there is
    /// room that nobody uses. Passes do it by themselves; this is for when none runs.
    /// Says whose could not be: those are over.
    pub fn bring_ahead(&mut self, now: Instant) -> Vec<SessionId> {
        self.bring_expected(now + AHEAD)
    }

    /// A session that waited goes on as soon as its turn comes.
    pub fn resume(&mut self, id: SessionId) -> Result<(), EngineError> {
        let Some(&Session { state, account, .. }) = self.sessions.get(&id) else {
            return Err(EngineError::NoSession(id));
        };
        let back = account.back(self.clock);
        let waiting = match state {
            State::Waiting { .. } => state,
            _ => State::Waiting { expected: None },
        };
        self.change(id, waiting, State::Ready)?.account = back;
        Ok(())
    }

    /// Moves a session from one state to another.
    fn change(
        &mut self,
        id: SessionId,
        from: State,
        to: State,
    ) -> Result<&mut Session, EngineError> {
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or(EngineError::NoSession(id))?;
        if session.state != from {
            let is = session.state.name();
            return Err(EngineError::State {
                id,
                is,
                wanted: from.name(),
            });
        }
        session.state = to;
        Ok(session)
    }

    /// Whether no session can run: none has tokens to run, or those that have wait for room
    /// that sessions hold which wait themselves.
    pub fn is_idle(&self) -> bool {
        !self.can_run()
    }

    /// Panics unless pages and sessions agree.
    pub fn check_integrity(&self) {
        self.pager
            .pages()
            .check_integrity(self.sessions.values().map(|s| &s.pages));
        self.streamer.check_integrity();
    }

    /// Runs one pass over the ready sessions whose turn it is, all of them where there is
    /// room. Where it fails, those sessions are over: half a pass may already have been
    /// captured, and must not be captured again. A session whose pages could not be moved
    /// is over too, and told so; the others go on.
    pub fn step(&mut self) -> Result<Vec<Output>, EngineError> {
        self.admit();
        let turn = self.make_ready();
        let ahead = self.bring_expected(Instant::now() + AHEAD);
        let lost = turn.lost.into_iter().chain(ahead);
        let mut outputs: Vec<Output> = lost.map(lost_pages).collect();
        if turn.run.is_empty() {
            return Ok(outputs);
        }
        match self.run_pass(&turn.run) {
            Ok(more) => outputs.extend(more),
            Err(error) => {
                self.streamer.abort_pass();
                for (id, _) in turn.run {
                    self.end_session(id, Finish::Failed);
                }
                return Err(error);
            }
        }
        for output in &mut outputs {
            if let Some(finish) = output.finish {
                output.finish = Some(self.end_turn(output.session, finish));
            }
        }
        Ok(outputs)
    }

    /// A session has generated what was asked for, or is over. Says which.
    fn end_turn(&mut self, id: SessionId, finish: Finish) -> Finish {
        let ended = matches!(finish, Finish::Length | Finish::Eos | Finish::Stop);
        let session = self.sessions.get_mut(&id).expect("it ran in this pass");
        if !session.keep || !ended {
            self.end_session(id, finish);
            return finish;
        }
        session.state = State::Waiting { expected: None };
        let sent = self.send_away(id, usize::MAX);
        sent.map_or(Finish::Failed, |()| finish)
    }

    /// Runs so many tokens of these sessions, whose pages are there.
    fn run_pass(&mut self, run: &[(SessionId, usize)]) -> Result<Vec<Output>, EngineError> {
        let mut all: BTreeMap<SessionId, &mut Session> = self
            .sessions
            .iter_mut()
            .map(|(id, session)| (*id, session))
            .collect();
        let mut members: Vec<&mut Session> =
            run.iter().filter_map(|(id, _)| all.remove(id)).collect();
        let shares: Vec<usize> = run.iter().map(|(_, rows)| *rows).collect();
        let settings = &self.blueprint.settings;
        let batch = Batch::new(&members, &shares, settings);
        let arena = &self.blueprint.arena;
        let mut pass = Pass {
            device: &*self.device,
            program: &self.model.program,
            blueprint: &self.blueprint,
            ids: arena.ids(batch.rows(), members.len(), batch.head.len()),
            arena,
            streamer: &mut *self.streamer,
            members: &mut members,
            batch: &batch,
            recording: self.recorder.is_on(),
        };
        let last = pass.run()?;
        self.last_pass = Some(self.streamer.end_pass(batch.rows())?);
        for (session, rows) in members.iter_mut().zip(shares) {
            session.computed += rows;
        }
        Ok(settle(&mut members, last))
    }
}

/// What is told of a session whose keys and values were lost on their way.
fn lost_pages(session: SessionId) -> Output {
    Output {
        session,
        token: None,
        text: String::new(),
        logprobs: Vec::new(),
        finish: Some(Finish::Failed),
    }
}

/// Samples for every session whose last token was run, and ends those that are done.
fn settle(members: &mut [&mut Session], mut last: Vec<Last>) -> Vec<Output> {
    let mut outputs = Vec::new();
    for session in members.iter_mut() {
        if session.pending() == 0 && !session.samples() {
            outputs.push(end(session, Finish::Length));
        }
    }
    last.sort_by_key(|last| last.member);
    for Last { member, scores } in last {
        outputs.push(sample(members[member], &scores));
    }
    outputs
}

/// Ends a session without another token.
fn end(session: &mut Session, finish: Finish) -> Output {
    session.state = State::Done(finish);
    Output {
        session: session.id,
        token: None,
        text: String::new(),
        logprobs: Vec::new(),
        finish: Some(finish),
    }
}

/// Gives a session its next token.
fn sample(session: &mut Session, scores: &Scores) -> Output {
    let Some(choice) = choose(session, scores) else {
        return end(session, Finish::NotANumber);
    };
    session.tokens.push(choice.token);
    let is_eos = session.eos.contains(&choice.token);
    let (mut text, stopped) = match &mut session.text {
        // The ending token is the model's business, not text.
        Some(text) if !is_eos => text.push(choice.token),
        _ => (String::new(), false),
    };
    let mut finish = session.finished_by(choice.token, stopped);
    if let (Some(stream), Some(_), false) = (&mut session.text, finish, stopped) {
        let (rest, stopped) = stream.finish();
        text.push_str(&rest);
        if stopped {
            finish = Some(Finish::Stop);
        }
    }
    if let Some(finish) = finish {
        session.state = State::Done(finish);
    }
    if session.sampling.logprobs.is_some() {
        session.logprobs.push(choice.logprobs.clone());
    }
    Output {
        session: session.id,
        token: Some(choice.token),
        text,
        logprobs: choice.logprobs,
        finish,
    }
}

fn choose(session: &Session, scores: &Scores) -> Option<Choice> {
    match scores {
        Scores::Chosen(token) => token.map(|token| Choice {
            token,
            logprobs: Vec::new(),
        }),
        Scores::Logits(logits) => {
            let (given, generated) = session.apart();
            sampler::choose(&session.sampling, logits, &given, &generated)
        }
    }
}

/// The shapes of every product, each once and without its place: blocks are alike.
fn expected(program: &Program) -> HashSet<Weight> {
    let weight = |id: TensorId, order: Order| {
        let tensor = program.tensor(id);
        let (rows, cols) = tensor.matrix();
        let view = View::new(0, tensor.dtype, rows, cols);
        Weight { view, order }
    };
    let mut all = HashSet::new();
    for op in program.ops() {
        match op {
            Op::Linear {
                weight: id, order, ..
            } => all.extend([weight(*id, *order)]),
            Op::Experts { experts, .. } => {
                let matrices = experts.iter().flat_map(|e| [e.gate, e.up, e.down]);
                all.extend(matrices.map(|id| weight(id, Order::OutIn)));
            }
            _ => {}
        }
    }
    all
}
