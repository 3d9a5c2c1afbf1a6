//! Identifiers of sessions in saved data: text, or a number in data of releases before 0.2.

use std::fmt;

use djinn_types::SessionId;
use serde::{
    Deserializer, Serializer,
    de::{Error, Visitor},
};

/// Writes an identifier as text.
pub(super) fn serialize<S: Serializer>(id: &SessionId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(id)
}

/// Reads an identifier from text or from a number.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SessionId, D::Error> {
    from.deserialize_any(SavedId)
}

struct SavedId;

impl Visitor<'_> for SavedId {
    type Value = SessionId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the id of a session")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<SessionId, E> {
        Ok(SessionId::from_bits(number.into()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<SessionId, E> {
        text.parse().map_err(E::custom)
    }
}
