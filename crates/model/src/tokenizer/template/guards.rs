//! Functions that replace the operators and filters of a template. Each one takes from the budget
//! what the original would create, then calls the original.

use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind, context, escape_formatter};
use minijinja_contrib::pycompat;

use super::budget::RenderBudget;

/// Names of the operators' functions. A template cannot write names with a space.
pub(super) const ADD: &str = "operator +";
pub(super) const MULTIPLY: &str = "operator *";
pub(super) const CONCATENATE: &str = "operator ~";

/// Largest number that a filter or method takes: a width, a count, or an indentation.
const NUMBER_MAX: i64 = 100_000;

/// Filters that create text or lists, and the functions that replace them. Other filters return a
/// part of their input or a number.
const FILTERS: [(&str, &str); 26] = [
    ("batch", "filter batch"),
    ("capitalize", "filter capitalize"),
    ("dictsort", "filter dictsort"),
    ("e", "filter e"),
    ("escape", "filter escape"),
    ("format", "filter format"),
    ("groupby", "filter groupby"),
    ("indent", "filter indent"),
    ("items", "filter items"),
    ("join", "filter join"),
    ("lines", "filter lines"),
    ("list", "filter list"),
    ("lower", "filter lower"),
    ("map", "filter map"),
    ("pprint", "filter pprint"),
    ("replace", "filter replace"),
    ("reverse", "filter reverse"),
    ("slice", "filter slice"),
    ("sort", "filter sort"),
    ("split", "filter split"),
    ("string", "filter string"),
    ("sum", "filter sum"),
    ("title", "filter title"),
    ("tojson", "filter tojson"),
    ("unique", "filter unique"),
    ("upper", "filter upper"),
];

/// Returns the function that replaces a filter, if the filter creates text or lists.
pub(super) fn filter(name: &str) -> Option<&'static str> {
    let found = FILTERS.iter().find(|(filter, _)| *filter == name);
    found.map(|(_, function)| *function)
}

/// Adds the functions to an environment. `prepare` completes the environment in which the
/// originals run.
pub(super) fn install(
    environment: &mut Environment<'static>,
    budget: &RenderBudget,
    prepare: fn(&mut Environment<'static>),
) {
    let mut originals = Environment::new();
    prepare(&mut originals);
    let originals = Arc::new(originals);
    for (operator, source) in [(ADD, "a + b"), (MULTIPLY, "a * b"), (CONCATENATE, "a ~ b")] {
        let (budget, originals) = (budget.clone(), Arc::clone(&originals));
        environment.add_function(operator, move |a: Jinja, b: Jinja| {
            budget.spend(operator_bytes(&budget, operator, &a, &b)?)?;
            let expression = originals.compile_expression(source)?;
            expression.eval(context! { a, b })
        });
    }
    for (filter, function) in FILTERS {
        let (budget, originals) = (budget.clone(), Arc::clone(&originals));
        environment.add_function(function, move |arguments: Rest<Jinja>, named: Kwargs| {
            let mut all = arguments.0;
            if named.args().next().is_some() {
                all.push(Jinja::from(named));
            }
            spend_call(&budget, filter, &all)?;
            originals.empty_state().apply_filter(filter, &all)
        });
    }
    let own = budget.clone();
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        let mut all = vec![value.clone()];
        all.extend_from_slice(arguments);
        spend_call(&own, method, &all)?;
        pycompat::unknown_method_callback(state, value, method, arguments)
    });
    let own = budget.clone();
    environment.set_formatter(move |out, state, value| {
        own.spend_text(value)?;
        escape_formatter(out, state, value)
    });
}

/// Returns the number of bytes that an operator creates.
fn operator_bytes(
    budget: &RenderBudget,
    operator: &str,
    a: &Jinja,
    b: &Jinja,
) -> Result<usize, Error> {
    // Joining lists creates no copy of their items.
    let size = |value: &Jinja| match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0),
    };
    Ok(match operator {
        MULTIPLY => {
            let times = |value: &Jinja| value.as_usize().unwrap_or(1);
            let (a, b) = (
                size(a) * times(b).min(1 << 40),
                size(b) * times(a).min(1 << 40),
            );
            a.max(b)
        }
        CONCATENATE => {
            let mut bytes = 0;
            for value in [a, b] {
                bytes += match value.as_str() {
                    Some(text) => text.len(),
                    None => budget.spend_text(value)?,
                };
            }
            bytes
        }
        _ => size(a) + size(b),
    })
}

/// Takes from the budget what a filter or method may create from its arguments.
fn spend_call(budget: &RenderBudget, name: &str, arguments: &[Jinja]) -> Result<(), Error> {
    let mut bytes = Vec::new();
    for argument in arguments {
        check_numbers(name, argument)?;
        bytes.push(budget.spend_text(argument)?);
    }
    let of = |index: usize| bytes.get(index).copied().unwrap_or(0);
    match name {
        // Every character of the text may be replaced by the new text.
        "replace" => budget.spend((of(0) + 1).saturating_mul(of(2))),
        // The separator stands between all items.
        "join" => budget.spend(of(0).saturating_mul(of(1))),
        // Every line may get the largest indentation.
        "indent" | "tojson" => {
            let widest = arguments.iter().filter_map(largest).max().unwrap_or(8);
            budget.spend(of(0).saturating_mul(widest.unsigned_abs() as usize))
        }
        // A format names widths.
        "format" => check_format(arguments),
        "batch" | "slice" => budget.spend(NUMBER_MAX as usize),
        _ => Ok(()),
    }
}

/// Returns the largest number in an argument or among named arguments.
fn largest(argument: &Jinja) -> Option<i64> {
    if argument.kind() == ValueKind::Number {
        return argument.as_i64();
    }
    if !argument.is_kwargs() {
        return None;
    }
    let values = argument.try_iter().ok()?;
    let values = values.filter_map(|key| argument.get_item(&key).ok()?.as_i64());
    values.max()
}

fn check_numbers(name: &str, argument: &Jinja) -> Result<(), Error> {
    match largest(argument) {
        Some(number) if number > NUMBER_MAX && name != "string" => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("{name}: {number} exceeds the limit {NUMBER_MAX}"),
        )),
        _ => Ok(()),
    }
}

/// Refuses a format with a width or precision of more than four digits.
fn check_format(arguments: &[Jinja]) -> Result<(), Error> {
    let is_wide = |text: &str| {
        let mut runs = text.split(|c: char| !c.is_ascii_digit());
        text.contains(['%', '{', '*']) && runs.any(|digits| digits.len() > 4)
    };
    let is_starred = |text: &str| text.contains('*');
    let mut texts = arguments.iter().filter_map(Jinja::as_str);
    match texts.any(|text| is_wide(text) || is_starred(text)) {
        true => Err(Error::new(
            ErrorKind::InvalidOperation,
            "format: a width has at most four digits",
        )),
        false => Ok(()),
    }
}
