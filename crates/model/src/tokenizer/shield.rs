//! Shield against panics of libraries that read files of a model. The tokenizers library, for
//! example, panics on some malformed files instead of returning an error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a function of a library. A panic becomes an error with the message of the panic.
///
/// The caller must not use values that the function had changed before it panicked.
pub(crate) fn shielded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "unknown reason".to_owned());
    format!("the reader failed: {}", text.replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::shielded;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(shielded(|| 1), Ok(1));
        let number = 3;
        let failed: Result<(), String> = shielded(|| panic!("number\n{number}"));
        assert_eq!(failed, Err("the reader failed: number 3".to_owned()));
    }
}
