//! Client of a Djinn server: models, sessions, and the inside of a model.
//!
//! Start at [`Client::connect`]. [`Client::model`] returns a [`ModelHandle`], and
//! [`ModelHandle::session`] a [`Create`] that sets up a session. [`Create::open`] opens the session and
//! returns its [`EventStream`]. A kept session outlives the connection; [`Client::session`] finds it by its
//! name.
//!
//! ```no_run
//! # async fn story() -> Result<(), djinn_client::Error> {
//! use djinn_client::{Client, TurnEvent, Options};
//!
//! let client = Client::connect("127.0.0.1:5556", Options::default()).await?;
//! let model = client.model("stories-7m");
//! let mut events = model.session().text("Once upon a time").max_tokens(40).open().await?;
//! while let Some(event) = events.next().await? {
//!     if let TurnEvent::Token(token) = event {
//!         print!("{}", token.text);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A breakpoint stops a pass on the server. The client reads only the parts that it requests:
//!
//! ```no_run
//! # async fn look(client: djinn_client::Client) -> Result<(), djinn_client::Error> {
//! use djinn_client::{HookEdit, Resume};
//!
//! let create = client.model("").session().text("The cat sat").max_tokens(8).keep();
//! let create = create.breakpoint("blocks.3.hook_resid_post@-1");
//! let events = create.open().await?;
//! let session = events.session().clone();
//! let turn = events.collect().await?;
//! println!("stopped at {}", turn.paused().map_or("nothing", |at| &at.hook));
//! let eight = session.activation("[0..8]", "-1").await?;
//! println!("{:?}", eight.data);
//! let halved = Resume::new().edit(HookEdit::scale("blocks.3.hook_resid_post", 0.5).at("-1"));
//! let turn = session.resume(halved).await?.collect().await?;
//! println!("{}", turn.text);
//! # Ok(())
//! # }
//! ```
//!
//! The client does not depend on the engine. Its messages come from `djinn-wire`.

#![forbid(unsafe_code)]

mod client;
mod connection;
mod create;
mod edit;
mod error;
mod model;
mod options;
mod push;
mod session;
mod tensor;
mod turn;
mod turn_setup;

pub use client::{Client, Register, StatusStream};
pub use create::Create;
pub use djinn_wire::{ErrorCode, FinishReason, v1};
pub use edit::HookEdit;
pub use error::Error;
pub use model::ModelHandle;
pub use options::Options;
pub use push::{Push, PushProgress};
pub use session::{EventStream, SessionHandle};
pub use tensor::TensorData;
pub use turn::{TurnEnd, TurnEvent, TurnOutput};
pub use turn_setup::{Generate, Resume};
