//! Interactive programs of the command line, and how commands print.
//!
//! [`chat`], [`debug`] and [`top`] talk to a server through the client, so they work in process and over a
//! network. Every command prints with [`say`] and fails with [`Failure`].

#![forbid(unsafe_code)]

mod chat;
mod debug;
pub mod grid;
mod interrupt;
mod lens;
mod output;
mod style;
mod top;

pub use chat::{ChatOptions, chat};
pub use debug::{DebugOptions, debug};
pub use interrupt::Interrupt;
pub use lens::{lens_svg, lens_text};
pub use output::{Failure, say, say_json};
pub use style::{Colour, coloured, id_list};
pub use top::{TopFormat, TopOptions, model_state, top};
