//! Download of one file, continued over several connections if necessary.

use std::io::Read;

use super::client::HubClient;
use super::folder::ModelFolder;
use super::listing::{RemoteFile, file_url};
use super::partial_file::{BUFFER_BYTES, PartialFile};
use super::request::Pull;
use super::response::HubResponse;
use super::retry::{AbortSignal, FetchFailure};
use crate::error::HubError;
use crate::progress::Progress;

/// Number of bytes after which a failed attempt does not count as a failure. With a smaller number
/// a server that sends single bytes could keep the client busy forever.
const ADVANCE_BYTES_MIN: u64 = 1 << 20;

/// Settings that the downloads of all files of a model share.
pub(super) struct FileFetcher<'a> {
    pub request: &'a Pull,
    pub client: &'a HubClient,
    pub sha: &'a str,
    pub abort: &'a AbortSignal,
    pub progress: &'a dyn Progress,
}

impl FileFetcher<'_> {
    /// Downloads a file into the folder and returns its size.
    pub(super) fn file(&self, file: &RemoteFile, folder: &ModelFolder) -> Result<u64, HubError> {
        let url = file_url(self.request, self.sha, &file.name);
        let mut part = PartialFile::open(folder.part(file), file)?;
        self.progress.start(&file.name, file.bytes, part.bytes());
        let on_wait = |error: &HubError, wait| self.progress.retry(&file.name, error, wait);
        self.request.retry.run(self.abort, on_wait, || {
            let before = part.bytes();
            let tried = self.attempt(file, &url, &mut part);
            tried.map_err(|failure| mark_progress(failure, before, part.bytes()))
        })?;
        part.publish(file, &folder.final_path(file)?)
    }

    /// Continues the partial file over one connection.
    fn attempt(
        &self,
        file: &RemoteFile,
        url: &str,
        part: &mut PartialFile,
    ) -> Result<(), FetchFailure> {
        if file.bytes == Some(part.bytes()) {
            return Ok(());
        }
        let mut response = self.client.get(url, part.bytes())?;
        let here = part.bytes();
        match response.status() {
            206 if response.range_start() == Some(here) => {}
            200 if here == 0 => {}
            200 => self.start_over(file, part)?,
            // The partial file is complete, and only the server knew its size.
            416 if response.total() == Some(here) => return Ok(()),
            206 | 416 => {
                self.start_over(file, part)?;
                return Err(FetchFailure::transient(broken(
                    &response.url,
                    "the server sent another range than requested",
                )));
            }
            _ => return Err(response.failure(self.request, Some(&file.name))),
        }
        let offered = response.total();
        if let Some(offered) = offered {
            fits(file, offered, |want| offered == want)?;
        }
        self.copy(file, &mut response, part)?;
        match file.bytes.or(offered) {
            Some(whole) if part.bytes() < whole => Err(FetchFailure::transient(broken(
                &response.url,
                "the connection ended early",
            ))),
            _ => Ok(()),
        }
    }

    fn copy(
        &self,
        file: &RemoteFile,
        response: &mut HubResponse,
        part: &mut PartialFile,
    ) -> Result<(), FetchFailure> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut body = response.body().as_reader();
        loop {
            let read = body.read(&mut buffer);
            let n = match read {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) => {
                    let reason = error.to_string();
                    return Err(FetchFailure::transient(broken(&response.url, &reason)));
                }
            };
            if self.abort.is_set() {
                return Err(FetchFailure::transient(broken(
                    &response.url,
                    "the download of another file failed",
                )));
            }
            let after = part.bytes() + n as u64;
            fits(file, after, |want| after <= want)?;
            part.append(&buffer[..n])?;
            self.progress.advance(&file.name, n as u64);
        }
    }

    fn start_over(&self, file: &RemoteFile, part: &mut PartialFile) -> Result<(), HubError> {
        part.restart()?;
        self.progress.start(&file.name, file.bytes, 0);
        Ok(())
    }
}

/// Checks a size against the listing, if the listing has one.
fn fits(file: &RemoteFile, got_bytes: u64, agrees: impl Fn(u64) -> bool) -> Result<(), HubError> {
    match file.bytes {
        Some(want_bytes) if !agrees(want_bytes) => Err(HubError::WrongSize {
            file: file.name.clone(),
            want_bytes,
            got_bytes,
        }),
        _ => Ok(()),
    }
}

fn broken(url: &str, reason: &str) -> HubError {
    HubError::Network {
        url: url.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Marks a failed attempt as progress if it downloaded enough bytes.
fn mark_progress(failure: FetchFailure, before: u64, after: u64) -> FetchFailure {
    match failure {
        FetchFailure::Transient {
            error, after: wait, ..
        } => FetchFailure::Transient {
            error,
            after: wait,
            advanced: after.saturating_sub(before) >= ADVANCE_BYTES_MIN,
        },
        permanent => permanent,
    }
}
