//! Files of a checkpoint: selection from the listing of a repository, and checks of a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path};

use serde::Deserialize;

use crate::HubError;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Files that a pull downloads if the repository has them.
const OPTIONAL: [&str; 6] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// File extensions of weights, for the error about a repository without safetensors.
const WEIGHT_FORMATS: [&str; 9] = [
    "safetensors",
    "bin",
    "gguf",
    "pt",
    "pth",
    "h5",
    "msgpack",
    "onnx",
    "ot",
];

/// Largest index that a pull reads, in bytes. The largest known index has a tenth of this size.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Selects the files to download, except shards. If [`INDEX`] is selected, its shards follow.
///
/// A repository may have the weights both in one file and in shards. The one file is selected
/// then, as in transformers.
pub(crate) fn choose(id: &str, listed: &BTreeSet<&str>) -> Result<Vec<&'static str>, HubError> {
    let lacks = |missing| HubError::NotACheckpoint {
        id: id.to_owned(),
        missing,
        found: weights_among(listed),
    };
    let weights = [SINGLE, INDEX].into_iter().find(|w| listed.contains(w));
    let weights = weights.ok_or_else(|| lacks(SINGLE))?;
    if !listed.contains(CONFIG) {
        return Err(lacks(CONFIG));
    }
    let optional = OPTIONAL.into_iter().filter(|name| listed.contains(name));
    Ok([CONFIG, weights].into_iter().chain(optional).collect())
}

/// Returns the names of the shards in an index.
pub(crate) fn shards(index: &Path) -> Result<BTreeSet<String>, HubError> {
    #[derive(Deserialize)]
    struct ShardIndex {
        weight_map: BTreeMap<String, String>,
    }
    let bad = |reason: String| HubError::BadIndex {
        path: index.to_owned(),
        reason,
    };
    let bytes = fs::metadata(index)
        .map_err(HubError::io("read", index))?
        .len();
    if bytes > INDEX_BYTES_MAX {
        return Err(bad(format!(
            "the file has {bytes} bytes, but the limit is {INDEX_BYTES_MAX}"
        )));
    }
    let text = fs::read(index).map_err(HubError::io("read", index))?;
    let parsed: ShardIndex = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
    if parsed.weight_map.is_empty() {
        return Err(bad("the index lists no tensors".to_owned()));
    }
    Ok(parsed.weight_map.into_values().collect())
}

/// Returns whether the name of a shard stays inside the folder and cannot replace other files.
pub(crate) fn is_safe_shard(name: &str) -> bool {
    let plain = |part: Component<'_>| match part {
        Component::Normal(part) => !part.to_string_lossy().starts_with('.'),
        _ => false,
    };
    name.ends_with(".safetensors")
        && !name.contains(['\\', ':', '\0'])
        && Path::new(name).components().all(plain)
}

/// Returns the first file that a folder lacks to be a checkpoint, if any.
pub(crate) fn missing(folder: &Path) -> Option<String> {
    let lacks = |name: &str| !folder.join(name).is_file();
    if lacks(CONFIG) {
        return Some(CONFIG.to_owned());
    }
    if !lacks(SINGLE) {
        return None;
    }
    if lacks(INDEX) {
        return Some(SINGLE.to_owned());
    }
    match shards(&folder.join(INDEX)) {
        Ok(shards) => shards.into_iter().find(|shard| lacks(shard)),
        Err(_) => Some(format!("valid {INDEX}")),
    }
}

/// Returns a short text about the weights in a listing.
fn weights_among(listed: &BTreeSet<&str>) -> String {
    const NAMED_MAX: usize = 4;
    let is_weights = |name: &&&str| {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|extension| WEIGHT_FORMATS.contains(&extension))
    };
    let weights: Vec<&str> = listed.iter().filter(is_weights).copied().collect();
    match weights.len() {
        0 => "no weights".to_owned(),
        n if n <= NAMED_MAX => weights.join(", "),
        n => format!(
            "{} and {} more",
            weights[..NAMED_MAX].join(", "),
            n - NAMED_MAX
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(listed: &[&str]) -> Result<Vec<&'static str>, HubError> {
        choose("o/n", &listed.iter().copied().collect())
    }

    #[test]
    fn only_files_that_djinn_reads_are_selected() {
        let whole = chosen(&[
            "README.md",
            "config.json",
            "model.safetensors",
            "original/consolidated.00.pth",
            "pytorch_model.bin",
            "tokenizer.json",
        ]);
        assert_eq!(whole.unwrap(), [CONFIG, SINGLE, "tokenizer.json"]);
        assert_eq!(chosen(&[CONFIG, INDEX]).unwrap(), [CONFIG, INDEX]);
        assert_eq!(chosen(&[CONFIG, INDEX, SINGLE]).unwrap(), [CONFIG, SINGLE]);
    }

    #[test]
    fn errors_name_the_weights_that_a_repository_has() {
        let check = |listed: &[&str], expect_missing: &str, expect_found: &str| match chosen(listed)
            .unwrap_err()
        {
            HubError::NotACheckpoint { missing, found, .. } => {
                assert_eq!((missing, &*found), (expect_missing, expect_found));
            }
            other => panic!("{other}"),
        };
        let other = "a.gguf, pytorch_model.bin";
        check(&[CONFIG, "pytorch_model.bin", "a.gguf"], SINGLE, other);
        check(&[CONFIG], SINGLE, "no weights");
        check(&[SINGLE], CONFIG, SINGLE);
        let many = ["1.bin", "2.bin", "3.bin", "4.bin", "5.bin", "6.bin"];
        check(&many, SINGLE, "1.bin, 2.bin, 3.bin, 4.bin and 2 more");
    }

    #[test]
    fn shards_outside_the_folder_are_unsafe() {
        for good in ["a.safetensors", "sub/model-00001-of-00002.safetensors"] {
            assert!(is_safe_shard(good), "{good}");
        }
        for bad in [
            "../a.safetensors",
            "/a.safetensors",
            "a/../../b.safetensors",
            ".djinn.safetensors",
            "a/.b/c.safetensors",
            "c:\\a.safetensors",
            "config.json",
            ".safetensors",
            "",
        ] {
            assert!(!is_safe_shard(bad), "{bad}");
        }
    }

    #[test]
    fn the_first_missing_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(missing(folder.path()).as_deref(), Some(CONFIG));
        write(CONFIG, "{}");
        assert_eq!(missing(folder.path()).as_deref(), Some(SINGLE));
        write(
            INDEX,
            r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#,
        );
        write("1.safetensors", "");
        assert_eq!(missing(folder.path()).as_deref(), Some("2.safetensors"));
        write("2.safetensors", "");
        assert_eq!(missing(folder.path()), None);
        write(INDEX, r#"{"weight_map":{}}"#);
        assert_eq!(missing(folder.path()), Some(format!("valid {INDEX}")));
    }
}
