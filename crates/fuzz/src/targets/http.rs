//! Requests to the HTTP API: the path on the first line, then the body.

use crate::{input::first_line, server};

/// Sends the request to a server in this process.
pub fn run(data: &[u8]) {
    let (path, body) = first_line(data);
    let Some(status) = server::get().post(&path, body) else {
        return;
    };
    let refused = (400..500).contains(&status);
    // Requests beyond a limit get 503, features that do not exist 501.
    let expected = status == 200 || refused || status == 501 || status == 503;
    assert!(expected, "status {status} of {path:?}");
    server::get().check_sometimes();
}
