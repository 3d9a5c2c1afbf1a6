//! Activation patching: the residual of a clean prompt in a corrupt one, at every block and position.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_client::{Create, ModelHandle, Resume, SessionHandle, TensorData, TurnOutput, v1};
use djinn_engine::{
    Change, EditSpec, EngineError, Operand, Positions, ProbeLimits, Settings, Tensor,
};
use djinn_model::{Site, program::Program};

use crate::{
    AnalysisError,
    edits::to_hook_edit,
    lens::token_texts,
    stop::StopRequest,
    turns::{join_turns, run_all},
};

/// Prompts and answers of a patching experiment, in tokens.
#[derive(Clone, Debug)]
pub struct PatchPrompts {
    /// Prompt whose residuals are put in place.
    pub clean: Vec<u32>,
    /// Prompt that is patched, with as many tokens.
    pub corrupt: Vec<u32>,
    /// First token of the clean prompt's answer.
    pub answer: u32,
    /// First token of the corrupt prompt's answer.
    pub instead: u32,
    /// Texts of the corrupt prompt's tokens.
    pub texts: Vec<String>,
}

impl PatchPrompts {
    /// Tokenizes the texts of an experiment.
    pub async fn tokenize(
        model: &ModelHandle,
        [clean, corrupt]: [&str; 2],
        [answer, instead]: [&str; 2],
    ) -> Result<Self, AnalysisError> {
        let clean = model.tokenize(clean).await?;
        let corrupt = model.tokenize(corrupt).await?;
        check_lengths(clean.len(), corrupt.len())?;
        let first = async |flag, text: &str| {
            let tokens = model.tokenize_more(text).await?;
            tokens
                .first()
                .copied()
                .ok_or(AnalysisError::EmptyAnswer(flag))
        };
        Ok(PatchPrompts {
            answer: first("--answer", answer).await?,
            instead: first("--instead", instead).await?,
            texts: token_texts(model, true, &corrupt).await?,
            clean,
            corrupt,
        })
    }

    /// Refuses answers that the model has no logit for.
    fn check_answers(&self, vocab: usize) -> Result<(), AnalysisError> {
        let is_unknown = |token: &u32| *token as usize >= vocab;
        match [self.answer, self.instead].into_iter().find(is_unknown) {
            Some(token) => Err(AnalysisError::UnknownAnswer { token, vocab }),
            None => Ok(()),
        }
    }

    /// Logit difference between the clean answer and the corrupt one.
    fn score(&self, logits: &[f32]) -> f64 {
        f64::from(logits[self.answer as usize]) - f64::from(logits[self.instead as usize])
    }
}

/// Result of a patching experiment.
#[derive(Clone, Debug)]
pub struct PatchGrid {
    /// Share of the clean answer that each patch restores, by block and position.
    pub effects: Vec<Vec<f64>>,
    /// Logit difference of the clean prompt.
    pub clean: f64,
    /// Logit difference of the corrupt prompt.
    pub corrupt: f64,
    /// Time of all patches.
    pub time: Duration,
    /// Comparison with patches that are computed from the first token, if requested.
    pub comparison: Option<PatchComparison>,
}

/// Patches computed from the first token, beside patches computed by branches.
#[derive(Clone, Copy, Debug)]
pub struct PatchComparison {
    /// Whether the logits are equal to the bit.
    pub equal: bool,
    /// Time of all patches, one after another.
    pub one_by_one: Duration,
    /// Time of all patches, as many in a batch as there are positions.
    pub batched: Duration,
}

/// Refuses prompts with different numbers of tokens.
pub fn check_lengths(clean: usize, corrupt: usize) -> Result<(), AnalysisError> {
    match clean == corrupt {
        true => Ok(()),
        false => Err(AnalysisError::PromptLengths { clean, corrupt }),
    }
}

/// Layout of an engine for a patching experiment with this many positions: one session that all others
/// branch from, and one for each position of a block.
pub fn patch_settings(
    program: &Program,
    positions: usize,
    rows: usize,
) -> Result<Settings, EngineError> {
    let rows = rows.max(positions + 1);
    let one = Settings::for_sessions(program, 1, positions, rows)?;
    let sessions = positions + 1;
    Ok(Settings {
        sessions,
        open: sessions,
        rows,
        pages: (sessions + 1) * one.pages,
        logit_rows: rows,
        probe_limits: ProbeLimits {
            operand_width: program.dims.d_model,
            ..ProbeLimits::default()
        },
        ..one
    })
}

/// Patches the corrupt prompt with the clean residual at every block and position. Everything before a
/// patch is computed once: sessions branch off there. With `compare`, also computes every patch from the
/// first token. A request to stop ends the experiment after its sessions are closed.
pub async fn patch(
    model: &ModelHandle,
    dims: &v1::Dims,
    prompts: &PatchPrompts,
    compare: bool,
    stop: &StopRequest,
) -> Result<PatchGrid, AnalysisError> {
    let mut patching = Patching {
        model,
        prompts,
        stop,
        blocks: dims.blocks as usize,
        width: dims.d_model as usize,
        clean: Activations::default(),
    };
    patching.clean = patching.activations(&prompts.clean).await?;
    let start = Instant::now();
    let corrupt = patching.activations(&prompts.corrupt).await?;
    prompts.check_answers(corrupt.logits.len())?;
    let best = prompts.score(&patching.clean.logits);
    let worst = prompts.score(&corrupt.logits);
    if best.total_cmp(&worst).is_eq() || !(best - worst).is_finite() {
        return Err(AnalysisError::SameAnswer(best));
    }
    let logits = patching.by_branches(&corrupt).await?;
    let time = start.elapsed();
    let comparison = match compare {
        true => Some(patching.compute_from_first_token(&logits).await?),
        false => None,
    };
    let effect = |logits: &Vec<f32>| (prompts.score(logits) - worst) / (best - worst);
    let rows = logits.iter().map(|row| row.iter().map(effect).collect());
    Ok(PatchGrid {
        effects: rows.collect(),
        clean: best,
        corrupt: worst,
        time,
        comparison,
    })
}

/// Logits after the last token, by block and position of the patch.
type LogitGrid = Vec<Vec<Vec<f32>>>;

/// Residual after each block of a prompt, and the logits after its last token.
#[derive(Default)]
struct Activations {
    residuals: Vec<Arc<Vec<f32>>>,
    logits: Vec<f32>,
}

struct Patching<'a> {
    model: &'a ModelHandle,
    prompts: &'a PatchPrompts,
    stop: &'a StopRequest,
    blocks: usize,
    width: usize,
    clean: Activations,
}

/// Name of the hook after a block.
fn hook(block: usize) -> String {
    Site::ResidPost(block).to_string()
}

fn logits(turn: &mut TurnOutput) -> Result<Vec<f32>, AnalysisError> {
    let hook = Site::Logits.to_string();
    let captured = turn.captured.remove(&hook);
    captured
        .map(|tensor| tensor.data)
        .ok_or(AnalysisError::NotCaptured(hook))
}

impl Patching<'_> {
    /// Session of a prompt whose logits after the last token are captured.
    fn session(&self, tokens: &[u32]) -> Create {
        let session = self.model.session().tokens(tokens).max_tokens(0);
        session.capture("logits@-1")
    }

    /// Runs a prompt and reads the residual after every block.
    async fn activations(&self, tokens: &[u32]) -> Result<Activations, AnalysisError> {
        let session = self
            .session(tokens)
            .capture("blocks.*.hook_resid_post")
            .capture_positions("all");
        let mut turn = self.stop.or(run_all([session])).await?.remove(0);
        let logits = logits(&mut turn)?;
        let residual = |block| {
            let captured = turn.captured.remove(&hook(block));
            let captured = captured.map(|tensor| Arc::new(tensor.data));
            captured.ok_or_else(|| AnalysisError::NotCaptured(hook(block)))
        };
        Ok(Activations {
            residuals: (0..self.blocks).map(residual).collect::<Result<_, _>>()?,
            logits,
        })
    }

    fn columns(&self, position: usize) -> std::ops::Range<usize> {
        position * self.width..(position + 1) * self.width
    }

    /// Edit that replaces the residual at a block and position with the clean one.
    fn edit(&self, block: usize, position: usize) -> Result<djinn_client::HookEdit, AnalysisError> {
        let row = &self.clean.residuals[block][self.columns(position)];
        let tensor = Tensor {
            shape: vec![self.width],
            data: row.to_vec(),
        };
        let change = Change::Replace(Operand::Tensor(Arc::new(tensor)));
        let first = position as i64;
        to_hook_edit(&EditSpec {
            positions: Positions::ranges(vec![(first, first + 1)]),
            ..EditSpec::at(Site::ResidPost(block), change)
        })
    }

    /// Computes the logits of every patch by branches. One session of the corrupt prompt pauses after the
    /// last block. For each patch, a branch of it goes back to the block and position of the patch, is
    /// edited, and runs to the end. Skips patches whose clean and corrupt residuals are equal.
    async fn by_branches(&self, corrupt: &Activations) -> Result<LogitGrid, AnalysisError> {
        let last = format!("{},step=0", hook(self.blocks - 1));
        let session = self.session(&self.prompts.corrupt).breakpoint(last).keep();
        let events = session.open().await?;
        let base = events.session().clone();
        let grid = async {
            self.stop.or(events.collect()).await?;
            // Branches inherit the breakpoints of their session.
            base.set_breakpoints::<String>([]).await?;
            self.patch_blocks(&base, corrupt).await
        };
        let grid = grid.await;
        // The session is closed after an error too.
        base.delete().await?;
        grid
    }

    async fn patch_blocks(
        &self,
        base: &SessionHandle,
        corrupt: &Activations,
    ) -> Result<LogitGrid, AnalysisError> {
        let mut grid = Vec::with_capacity(self.blocks);
        for block in 0..self.blocks {
            grid.push(self.patch_block(base, corrupt, block).await?);
        }
        Ok(grid)
    }

    async fn patch_block(
        &self,
        base: &SessionHandle,
        corrupt: &Activations,
        block: usize,
    ) -> Result<Vec<Vec<f32>>, AnalysisError> {
        let positions = self.prompts.corrupt.len();
        let residual = &corrupt.residuals[block];
        let differs = |position: &usize| {
            let columns = self.columns(*position);
            residual[columns.clone()] != self.clean.residuals[block][columns]
        };
        let patched: Vec<usize> = (0..positions).filter(differs).collect();
        let edits = patched.iter().map(|&position| self.edit(block, position));
        let edits = edits.collect::<Result<Vec<_>, _>>()?;
        let branches = patched.iter().copied().zip(edits);
        let resumed = branches.map(|(position, edit)| {
            let (base, residual) = (base.clone(), Arc::clone(residual));
            let stop = self.stop.clone();
            let (start, width) = (self.columns(position).start, self.width);
            async move {
                let rest = TensorData {
                    shape: vec![positions - position, width],
                    data: residual[start..].to_vec(),
                };
                let branch = base
                    .branch_back(hook(block), position as u64, &rest)
                    .await?;
                let resume = Resume::new().edit(edit);
                let turn = async { branch.resume(resume).await?.collect().await };
                let turn = stop.or(turn).await;
                // A branch is kept as its session is, and stays open after an error.
                let is_open = |turn: &TurnOutput| turn.finished().is_none_or(|end| end.kept);
                if turn.as_ref().map_or(true, is_open) {
                    branch.delete().await?;
                }
                turn
            }
        });
        let mut row = vec![corrupt.logits.clone(); positions];
        let turns = join_turns(resumed).await?;
        for (&position, mut turn) in patched.iter().zip(turns) {
            row[position] = logits(&mut turn)?;
        }
        Ok(row)
    }

    /// Computes every patch from the first token: one after another, and batched.
    async fn compute_from_first_token(
        &self,
        expected: &LogitGrid,
    ) -> Result<PatchComparison, AnalysisError> {
        let positions = self.prompts.corrupt.len();
        let blocks = 0..self.blocks;
        let all: Vec<(usize, usize)> = blocks
            .flat_map(|block| (0..positions).map(move |position| (block, position)))
            .collect();
        let (alone, one_by_one) = self.compare(&all, 1, expected).await?;
        let (together, batched) = self.compare(&all, positions, expected).await?;
        Ok(PatchComparison {
            equal: alone && together,
            one_by_one,
            batched,
        })
    }

    /// Computes patches in batches. Returns whether all logits are as expected, and the time.
    async fn compare(
        &self,
        patches: &[(usize, usize)],
        batch: usize,
        expected: &LogitGrid,
    ) -> Result<(bool, Duration), AnalysisError> {
        let start = Instant::now();
        let mut equal = true;
        for some in patches.chunks(batch) {
            let mut sessions = Vec::with_capacity(some.len());
            for &(block, position) in some {
                let session = self.session(&self.prompts.corrupt);
                sessions.push(session.edit(self.edit(block, position)?));
            }
            let turns = self.stop.or(run_all(sessions)).await?;
            for (&(block, position), mut turn) in some.iter().zip(turns) {
                equal &= logits(&mut turn)? == expected[block][position];
            }
        }
        Ok((equal, start.elapsed()))
    }
}
