//! One file, over as many connections as it takes.

use std::io::Read;

use super::Pull;
use super::answer::Answer;
use super::client::Client;
use super::folder::Folder;
use super::listing::{RemoteFile, file_url};
use super::part::{BUFFER_BYTES, Part};
use super::retry::{Failure, Halt};
use crate::{HubError, Progress};

/// A try that brought this much is not held against the connection. Less does not count, or a server
/// that sends a byte at a time would keep us for ever.
const ADVANCE_BYTES_MIN: u64 = 1 << 20;

/// What the files of one model share.
pub(super) struct Fetch<'a> {
    pub request: &'a Pull,
    pub client: &'a Client,
    pub sha: &'a str,
    pub halt: &'a Halt,
    pub progress: &'a dyn Progress,
}

impl Fetch<'_> {
    /// Brings the file into its place and returns its size.
    pub(super) fn file(&self, file: &RemoteFile, folder: &Folder) -> Result<u64, HubError> {
        let url = file_url(self.request, self.sha, &file.name);
        let mut part = Part::open(folder.part(file), file)?;
        self.progress.start(&file.name, file.bytes, part.bytes());
        let on_wait = |error: &HubError, wait| self.progress.retry(&file.name, error, wait);
        self.request.retry.run(self.halt, on_wait, || {
            let before = part.bytes();
            let tried = self.attempt(file, &url, &mut part);
            tried.map_err(|failure| judge(failure, before, part.bytes()))
        })?;
        part.publish(file, &folder.place(file)?)
    }

    /// One connection: goes on from where the part ends.
    fn attempt(&self, file: &RemoteFile, url: &str, part: &mut Part) -> Result<(), Failure> {
        if file.bytes == Some(part.bytes()) {
            return Ok(());
        }
        let mut answer = self.client.get(url, part.bytes())?;
        let here = part.bytes();
        match answer.status() {
            206 if answer.range_start() == Some(here) => {}
            200 if here == 0 => {}
            200 => self.start_over(file, part)?,
            // The part was whole, and only the server knew.
            416 if answer.total() == Some(here) => return Ok(()),
            206 | 416 => {
                self.start_over(file, part)?;
                return Err(Failure::passing(broken(
                    &answer.url,
                    "another range than asked for",
                )));
            }
            _ => return Err(answer.refusal(self.request, Some(&file.name))),
        }
        let offered = answer.total();
        if let Some(offered) = offered {
            fits(file, offered, |want| offered == want)?;
        }
        self.copy(file, &mut answer, part)?;
        match file.bytes.or(offered) {
            Some(whole) if part.bytes() < whole => Err(Failure::passing(broken(
                &answer.url,
                "the connection ended early",
            ))),
            _ => Ok(()),
        }
    }

    fn copy(&self, file: &RemoteFile, answer: &mut Answer, part: &mut Part) -> Result<(), Failure> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut body = answer.body().as_reader();
        loop {
            let read = body.read(&mut buffer);
            let n = match read {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) => {
                    let reason = error.to_string();
                    return Err(Failure::passing(broken(&answer.url, &reason)));
                }
            };
            if self.halt.is_set() {
                return Err(Failure::passing(broken(&answer.url, "another file failed")));
            }
            let after = part.bytes() + n as u64;
            fits(file, after, |want| after <= want)?;
            part.append(&buffer[..n])?;
            self.progress.advance(&file.name, n as u64);
        }
    }

    fn start_over(&self, file: &RemoteFile, part: &mut Part) -> Result<(), HubError> {
        part.restart()?;
        self.progress.start(&file.name, file.bytes, 0);
        Ok(())
    }
}

/// Whether a size agrees with the one listed, where one is.
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

/// Forgives a failed try that brought the file on.
fn judge(failure: Failure, before: u64, after: u64) -> Failure {
    match failure {
        Failure::Passing {
            error, after: wait, ..
        } => Failure::Passing {
            error,
            after: wait,
            advanced: after.saturating_sub(before) >= ADVANCE_BYTES_MIN,
        },
        lasting => lasting,
    }
}
