//! Element type of keys and values in saved data: its name, or nothing in data of earlier builds.

use djinn_types::DType;
use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Types that keys and values can have.
const DTYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// Writes the name of the type.
pub(super) fn serialize<S: Serializer>(dtype: &Option<DType>, to: S) -> Result<S::Ok, S::Error> {
    match dtype {
        Some(dtype) => to.collect_str(dtype),
        None => to.serialize_none(),
    }
}

/// Reads the name of a type.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DType>, D::Error> {
    let Some(name) = Option::<String>::deserialize(from)? else {
        return Ok(None);
    };
    let dtype = DTYPES.into_iter().find(|dtype| dtype.to_string() == name);
    let unknown = || D::Error::custom(format!("'{name}' is no type of keys and values"));
    dtype.ok_or_else(unknown).map(Some)
}
