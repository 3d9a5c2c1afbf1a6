//! Repository of a test server.

use sha2::{Digest, Sha256};

use crate::server::{Reply, Request};

pub const ID: &str = "org/name";
pub const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

/// A repository of one model.
#[derive(Debug, Clone)]
pub struct Repo {
    pub sha: String,
    files: Vec<(String, Vec<u8>)>,
    /// Whether the listing has sizes and hashes, as with `?blobs=true`.
    pub blobs: bool,
    /// Wrong size and hash of a file in the listing.
    pub lie: Option<(String, Option<u64>, Option<String>)>,
}

impl Repo {
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        let owned = |(name, body): &(&str, &[u8])| ((*name).to_owned(), body.to_vec());
        Self {
            sha: SHA.to_owned(),
            files: files.iter().map(owned).collect(),
            blobs: true,
            lie: None,
        }
    }

    /// Creates a model with one file of weights.
    pub fn whole(weights: &[u8]) -> Self {
        Self::new(&[("config.json", b"{}"), ("model.safetensors", weights)])
    }

    pub fn put(&mut self, name: &str, body: &[u8]) {
        self.files.retain(|(other, _)| other != name);
        self.files.push((name.to_owned(), body.to_vec()));
    }

    pub fn body(&self, name: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(other, _)| other == name);
        found.map(|(_, body)| body.as_slice())
    }

    /// Responds like a hub without errors.
    pub fn answer(&self, request: &Request) -> Reply {
        if request
            .path
            .starts_with(&format!("/api/models/{ID}/revision/"))
        {
            return Reply::ok(self.listing());
        }
        let prefix = format!("/{ID}/resolve/{}/", self.sha);
        let body = request
            .path
            .strip_prefix(&prefix)
            .and_then(|name| self.body(name));
        body.map_or(Reply::status(404), |body| {
            Reply::ranged(body, request.from())
        })
    }

    pub fn listing(&self) -> String {
        let files = self
            .files
            .iter()
            .map(|(name, body)| self.sibling(name, body));
        let files: Vec<_> = files.collect();
        serde_json::json!({"id": ID, "sha": self.sha, "siblings": files}).to_string()
    }

    fn sibling(&self, name: &str, body: &[u8]) -> serde_json::Value {
        if !self.blobs {
            return serde_json::json!({"rfilename": name});
        }
        let lie = self.lie.as_ref().filter(|(of, _, _)| of == name);
        let size = lie
            .and_then(|(_, size, _)| *size)
            .unwrap_or(body.len() as u64);
        let hash = lie
            .and_then(|(_, _, hash)| hash.clone())
            .unwrap_or_else(|| sha256(body));
        let blob = &hash[..40];
        if name.ends_with(".safetensors") {
            let lfs = serde_json::json!({"sha256": hash, "size": size, "pointerSize": 134});
            serde_json::json!({"rfilename": name, "size": size, "blobId": blob, "lfs": lfs})
        } else {
            serde_json::json!({"rfilename": name, "size": size, "blobId": blob})
        }
    }
}

pub fn sha256(body: &[u8]) -> String {
    let digest = Sha256::digest(body);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns bytes without a period, so that a misplaced range is detected.
pub fn weights(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * i / 7 + i / 251) as u8).collect()
}
