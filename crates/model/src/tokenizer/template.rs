//! Rendering of Jinja templates with limits of time and memory: templates come with models, and a
//! hostile one must not stop a server.
//!
//! - A template may take a number of steps ([`FUEL`]).
//! - Operators, filters, methods and output spend bytes of a [`RenderBudget`] before they create
//!   text. Minijinja has no such limit, so the operators and filters of the compiled template are
//!   replaced by functions that check the budget first.
//! - Values may be nested as deep as the steps allow. Dropping such a value recurses, so a thread
//!   with a large stack renders the template.

mod budget;
mod guards;

use std::sync::Arc;
use std::thread;

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions, TemplateConfig};
use minijinja::machinery::{eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value as Jinja};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use self::budget::RenderBudget;
use super::shield::shielded;

/// Number of steps that a template may take. Real templates need far fewer. The limit stops an
/// endless template quickly.
const FUEL: u64 = 1_000_000;
/// Bytes of the template's own text that all steps together may emit, as a multiple of the budget.
/// A template with long texts therefore may take fewer steps.
const OWN_TEXT_BUDGETS: u64 = 2;
/// Size in bytes of the stack of the rendering thread. Unused pages take no memory.
const STACK_BYTES: usize = 512 << 20;

/// Name of the rendering thread. The fuzz targets allow its panics, because the caller gets an error.
const THREAD: &str = "djinn-template";

/// Renders a template, in an environment that `prepare` completes.
pub(super) fn render(
    source: &str,
    context: &Map<String, Value>,
    prepare: fn(&mut Environment<'static>),
) -> Result<String, Error> {
    let fault = |problem: String| Error::new(ErrorKind::InvalidOperation, problem);
    let run = || shielded(|| render_here(source, context, prepare)).map_err(fault)?;
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(THREAD.to_owned());
        let thread = thread.stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, run);
        let thread = thread.map_err(|error| fault(format!("no thread to render: {error}")))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(fault("the rendering thread failed".to_owned())))
    })
}

fn render_here(
    source: &str,
    context: &Map<String, Value>,
    prepare: fn(&mut Environment<'static>),
) -> Result<String, Error> {
    let mut syntax = SyntaxConfig::builder();
    let config = TemplateConfig {
        syntax_config: syntax.trim_blocks(true).lstrip_blocks(true).build()?,
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let mut template = CompiledTemplate::new("<string>", source, &config)?;
    let mut longest = guard(&mut template.instructions);
    for block in template.blocks.values_mut() {
        longest = longest.max(guard(block));
    }
    let budget = RenderBudget::of(context);
    let own_text = OWN_TEXT_BUDGETS * budget.left() as u64;
    let mut environment = Environment::new();
    prepare(&mut environment);
    guards::install(&mut environment, &budget, prepare);
    environment.set_fuel(Some(FUEL.min(own_text / longest.max(1))));
    let mut text = String::new();
    eval(
        &environment,
        &template.instructions,
        Jinja::from(Serde(context)),
        &template.blocks,
        &mut make_string_output(&mut text),
        AutoEscape::None,
    )?;
    Ok(text)
}

/// Replaces operators and filters by functions of [`guards`]. Returns the length of the longest
/// plain text.
fn guard(instructions: &mut Instructions<'_>) -> u64 {
    let mut longest = 0;
    let mut index = 0;
    while let Some(instruction) = instructions.get_mut(index) {
        let function = match instruction {
            Instruction::Add => Some((guards::ADD, Some(2))),
            Instruction::Mul => Some((guards::MULTIPLY, Some(2))),
            Instruction::StringConcat => Some((guards::CONCATENATE, Some(2))),
            Instruction::ApplyFilter(name, count, _) => {
                guards::filter(name).map(|function| (function, *count))
            }
            Instruction::EmitRaw(text) => {
                longest = longest.max(text.len() as u64);
                None
            }
            _ => None,
        };
        if let Some((name, count)) = function {
            *instruction = Instruction::CallFunction(name, count);
        }
        index += 1;
    }
    longest
}
