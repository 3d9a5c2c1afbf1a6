//! The executor: runs batches of sessions through the program of the model on the device.

mod active_rows;
mod apply_edits;
mod attention;
pub(crate) mod batch;
mod experts;
mod fused;
pub(crate) mod graph_regions;
mod ops;
pub(crate) mod pass;
pub(crate) mod progress;
mod read_hooks;
mod replay;
mod stops;
mod window;

use std::{collections::HashSet, ops::ControlFlow, sync::Arc};

use djinn_device::{Backend, Device, Event, Stream, View, Weight};
use djinn_kv::{PageStream, Pager, PendingPages};
use djinn_model::{
    Model,
    program::{Op, Program, TensorId},
};
use djinn_types::Order;
use djinn_weights::{PassStats, Recorder, Streamer};

use crate::upload::{upload_ids, upload_numbers};
use crate::{
    blueprint::Blueprint,
    error::EngineError,
    probe::staging::Staging,
    session::{Session, state::Transition},
};
use batch::Batch;
use pass::{Pass, PassResult};
use progress::PassProgress;

/// Progress of loading a model.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Number of bytes loaded so far.
    pub loaded: u64,
    /// Number of bytes to load.
    pub total: u64,
}

/// A device with the weights of a model, ready to run passes.
pub(crate) struct Executor {
    /// Streams weights. First, so that its threads end before the memory that they use is freed.
    streamer: Box<dyn Streamer>,
    recorder: Arc<Recorder>,
    device: Arc<dyn Device>,
    staging: Staging,
    last_pass: Option<PassStats>,
    passes: usize,
    /// Host time in seconds that the last pass spent on saving paused sessions.
    pause_s: f64,
    /// Whether the memory of the device is allocated.
    holds_memory: bool,
}

impl Executor {
    /// Allocates the memory of a blueprint on the device and loads the resident weights.
    pub fn load(
        model: &Model,
        backend: &dyn Backend,
        blueprint: &Blueprint,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        blueprint.check(backend)?;
        let device = backend.open(blueprint.footprint().slab(), blueprint.pass_limits())?;
        let weights = blueprint.weights();
        let recorder = Arc::new(Recorder::new(weights.labels()));
        let mut streamer = djinn_weights::start(weights, &device, &model.weights, &recorder)?;
        let total = weights.load_bytes();
        streamer.load(weights, &mut |loaded| {
            progress(LoadProgress { loaded, total });
            ControlFlow::Continue(())
        })?;
        device.release_staging();
        for weight in weight_shapes(&model.program) {
            device.warm_up(weight)?;
        }
        upload_constants(&*device, model, blueprint)?;
        Ok(Executor {
            streamer,
            recorder,
            device,
            staging: Staging::default(),
            last_pass: None,
            passes: 0,
            pause_s: 0.0,
            holds_memory: true,
        })
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Returns the recorder of copies, waits and computation.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Number of passes so far.
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// Statistics of the last pass.
    pub fn last_pass(&self) -> Option<PassStats> {
        self.last_pass
    }

    /// Host time in seconds that the last pass spent on saving paused sessions.
    pub fn pause_seconds(&self) -> f64 {
        self.pause_s
    }

    /// Panics unless only the ring has copies in flight.
    pub fn check_integrity(&self) {
        self.streamer.check_integrity();
    }

    /// Changes the level of an elastic blueprint, between two passes. If that fails, the level
    /// stays.
    pub fn switch(
        &mut self,
        program: &Program,
        blueprint: &mut Blueprint,
        level: usize,
    ) -> Result<(), EngineError> {
        let before = blueprint.weights().level();
        blueprint.set_level(program, level);
        let switched = self.streamer.switch(blueprint.weights(), before);
        if switched.is_err() {
            blueprint.set_level(program, before);
        }
        Ok(switched?)
    }

    /// Stops all copies of weights between two passes, and gives the memory of the device back. The
    /// caller has moved all KV pages away.
    pub fn swap_out(&mut self) -> Result<(), EngineError> {
        self.streamer.suspend()?;
        self.staging.clear();
        self.device.release_memory()?;
        self.holds_memory = false;
        Ok(())
    }

    /// Whether the memory of the device is allocated.
    pub fn holds_memory(&self) -> bool {
        self.holds_memory
    }

    /// Takes the memory of the device again and loads the resident weights, from host memory as far
    /// as it has a copy. If that fails, the device's memory is given back if possible.
    pub fn swap_in(
        &mut self,
        model: &Model,
        blueprint: &Blueprint,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let loaded = self.load_again(model, blueprint, progress);
        if loaded.is_err() {
            // The first failure is the one to report.
            let _ = self.swap_out();
        }
        loaded
    }

    fn load_again(
        &mut self,
        model: &Model,
        blueprint: &Blueprint,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.device.restore_memory()?;
        self.holds_memory = true;
        let weights = blueprint.weights();
        let total = weights.load_bytes();
        self.streamer.load(weights, &mut |loaded| {
            progress(LoadProgress { loaded, total })
        })?;
        self.device.release_staging();
        upload_constants(&*self.device, model, blueprint)
    }

    /// Gives up a pass that failed, with all copies in flight.
    pub fn abort_pass(&mut self) {
        self.streamer.abort_pass();
        self.staging.clear();
    }

    /// Runs `rows[i]` tokens of `members[i]`. While the device computes, calls `during` again and
    /// again with the pager and the members.
    pub fn run_pass(
        &mut self,
        model: &Model,
        blueprint: &Blueprint,
        pager: &mut Pager,
        members: &mut [Session],
        rows: &[usize],
        during: &mut dyn FnMut(&mut Pager, &[Session]),
    ) -> Result<PassResult, EngineError> {
        for session in members.iter_mut() {
            session.apply(Transition::Run)?;
        }
        let arrivals = pager.pending(members.iter().map(|session| &session.pages))?;
        pager.begin_pass()?;
        let stream = pager.stream(members.iter().map(|session| &session.pages))?;
        let (settings, pages) = (blueprint.settings(), pager.pages());
        let batch = Batch::new(members, rows, settings, pages, stream.as_ref());
        let run = PassRun {
            model,
            blueprint,
            batch: &batch,
            arrivals: &arrivals,
            stream: stream.as_ref(),
        };
        let result = self.compute(&run, pager, members, during);
        pager.end_pass();
        self.staging.clear();
        let result = result?;
        let kv_bytes = match &stream {
            Some(stream) => pager.end_stream(stream)?,
            None => 0,
        };
        self.pause_s = result.pause_s;
        self.last_pass = Some(PassStats {
            kv_bytes,
            ..self.streamer.end_pass(batch.rows())?
        });
        self.passes += 1;
        Ok(result)
    }

    /// Starts the pass on the device, waits for its end and reads the results.
    fn compute(
        &mut self,
        run: &PassRun<'_>,
        pager: &mut Pager,
        members: &mut [Session],
        during: &mut dyn FnMut(&mut Pager, &[Session]),
    ) -> Result<PassResult, EngineError> {
        let mut pass = self.pass(run, members, PassProgress::default());
        pass.begin()?;
        let progress = pass.progress;
        let end = self.device.record(Stream::Compute)?;
        while !self.device.is_past(&end)? {
            during(pager, members);
        }
        self.pass(run, members, progress).end()
    }

    fn pass<'a>(
        &'a mut self,
        run: &PassRun<'a>,
        members: &'a mut [Session],
        progress: PassProgress,
    ) -> Pass<'a> {
        let (arena, batch) = (&run.blueprint.arena, run.batch);
        Pass {
            device: &*self.device,
            program: &run.model.program,
            blueprint: run.blueprint,
            ids: arena.ids(
                batch.rows(),
                members.len(),
                batch.head.len(),
                run.stream.is_some(),
            ),
            arena,
            streamer: &mut *self.streamer,
            staging: &mut self.staging,
            members,
            batch,
            arrivals: run.arrivals,
            stream: run.stream,
            recording: self.recorder.is_on(),
            progress,
        }
    }
}

/// Uploads what every pass reads besides the weights: frequencies of the rotary embedding, and the
/// numbers of rows.
fn upload_constants(
    device: &dyn Device,
    model: &Model,
    blueprint: &Blueprint,
) -> Result<(), EngineError> {
    let arena = &blueprint.arena;
    if let Some(rope) = &model.program.rope {
        upload_numbers(device, arena.frequencies, &rope.frequencies)?;
    }
    let numbers: Vec<i32> = (0..arena.row_numbers.rows as i32).collect();
    Ok(upload_ids(device, arena.row_numbers, &numbers)?)
}

/// Inputs that both halves of a pass share.
struct PassRun<'a> {
    model: &'a Model,
    blueprint: &'a Blueprint,
    batch: &'a Batch,
    arrivals: &'a PendingPages<Event>,
    stream: Option<&'a PageStream>,
}

/// Returns the shape of every matrix product, each once and without its offset: blocks are alike.
fn weight_shapes(program: &Program) -> HashSet<Weight> {
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
