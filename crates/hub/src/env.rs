//! Environment variables. Only this module reads them; other modules take arguments.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{HubError, HubToken};

const ENDPOINT_DEFAULT: &str = "https://huggingface.co";

/// Folders that hold models on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPaths {
    /// Djinn's home folder: `$DJINN_HOME`, or `djinn` in the user's cache folder.
    pub home: PathBuf,
    /// Cache that Hugging Face tools share: `$HF_HUB_CACHE`, or `$HF_HOME/hub`, or
    /// `huggingface/hub` in the user's cache folder.
    pub hf_cache: Option<PathBuf>,
}

impl ModelPaths {
    /// Reads the folders from the environment.
    pub fn from_env() -> Result<Self, HubError> {
        HubEnvironment::process().paths()
    }
}

/// Environment variables by name.
pub(crate) struct HubEnvironment(HashMap<String, OsString>);

impl HubEnvironment {
    /// Reads the environment of this process.
    pub(crate) fn process() -> Self {
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        Self(std::env::vars_os().filter_map(named).collect())
    }

    pub(crate) fn paths(&self) -> Result<ModelPaths, HubError> {
        let home = self.path("DJINN_HOME");
        let home = home.or_else(|| Some(self.user_cache()?.join("djinn")));
        let cache = self.path("HF_HUB_CACHE");
        Ok(ModelPaths {
            home: home.ok_or(HubError::NoHome)?,
            hf_cache: cache.or_else(|| Some(self.hf_home()?.join("hub"))),
        })
    }

    pub(crate) fn endpoint(&self) -> String {
        self.text("HF_ENDPOINT")
            .unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned())
    }

    pub(crate) fn token(&self) -> Result<Option<HubToken>, HubError> {
        if let Some(text) = self.text("HF_TOKEN") {
            return HubToken::new(&text).map(Some);
        }
        match self.hf_home() {
            Some(hf_home) => token_in(&hf_home.join("token")),
            None => Ok(None),
        }
    }

    pub(crate) fn certificates(&self) -> Option<PathBuf> {
        self.path("SSL_CERT_FILE")
    }

    fn hf_home(&self) -> Option<PathBuf> {
        self.path("HF_HOME")
            .or_else(|| Some(self.user_cache()?.join("huggingface")))
    }

    fn user_cache(&self) -> Option<PathBuf> {
        self.path("XDG_CACHE_HOME")
            .or_else(|| Some(self.path("HOME")?.join(".cache")))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let value = self.0.get(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    }

    fn text(&self, name: &str) -> Option<String> {
        let value = self.0.get(name)?.to_string_lossy().trim().to_owned();
        (!value.is_empty()).then_some(value)
    }
}

/// Reads the token that `hf auth login` stores; returns `None` if there is no such file.
fn token_in(path: &Path) -> Result<Option<HubToken>, HubError> {
    match fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => HubToken::new(&text).map(Some),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(HubError::io("read", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> HubEnvironment {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), OsString::from(value));
        HubEnvironment(variables.iter().map(owned).collect())
    }

    #[test]
    fn paths_follow_the_most_specific_variable() {
        let check = |variables: &[(&str, &str)], home: &str, hf_cache: &str| {
            let paths = environment(variables).paths().unwrap();
            assert_eq!(paths.home, Path::new(home), "{variables:?}");
            assert_eq!(paths.hf_cache.as_deref(), Some(Path::new(hf_cache)));
        };
        let home = ("HOME", "/h");
        let (djinn, hf) = ("/h/.cache/djinn", "/h/.cache/huggingface/hub");
        check(&[home], djinn, hf);
        check(&[home, ("DJINN_HOME", "")], djinn, hf);
        check(&[home, ("DJINN_HOME", "/d")], "/d", hf);
        check(&[home, ("HF_HOME", "/f")], djinn, "/f/hub");
        check(
            &[home, ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")],
            djinn,
            "/c",
        );
        let xdg = ("XDG_CACHE_HOME", "/x");
        check(&[home, xdg], "/x/djinn", "/x/huggingface/hub");
    }

    #[test]
    fn without_home_djinn_home_is_required() {
        let error = environment(&[]).paths().unwrap_err();
        assert!(matches!(error, HubError::NoHome), "{error}");
        let paths = environment(&[("DJINN_HOME", "/d")]).paths().unwrap();
        assert_eq!(paths.hf_cache, None);
    }

    #[test]
    fn token_variable_takes_precedence_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let hf_home = ("HF_HOME", folder.path().to_str().unwrap());
        let token = |variables: &[(&str, &str)]| environment(variables).token().unwrap();
        assert_eq!(token(&[hf_home]), None);
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(token(&[hf_home]), Some(HubToken::new("hf_file").unwrap()));
        let both = token(&[hf_home, ("HF_TOKEN", "hf_variable")]);
        assert_eq!(both, Some(HubToken::new("hf_variable").unwrap()));
    }

    #[test]
    fn endpoint_has_a_default() {
        assert_eq!(environment(&[]).endpoint(), ENDPOINT_DEFAULT);
        let mirror = environment(&[("HF_ENDPOINT", "https://mirror")]);
        assert_eq!(mirror.endpoint(), "https://mirror");
    }
}
