//! Calls of the gRPC API, between lines of `---`: the method on the first line, then the message.

use crate::{
    input::{first_line, section},
    server::{self, CallReply},
};

/// Number of calls of one input that are sent.
const CALLS_MAX: usize = 6;
/// Status of a failure inside the server.
const INTERNAL: i32 = 13;
/// Status of a call whose handler ended without an answer.
const UNKNOWN: i32 = 2;

/// Sends the calls to a server in this process, one after the other.
pub fn run(data: &[u8]) {
    let mut session = None;
    for number in 0..CALLS_MAX {
        let call = section(data, number);
        if call.is_empty() {
            break;
        }
        let (method, message) = first_line(call);
        let message = with_session(message, session.as_deref());
        let Some(reply) = server::get().call(&method, &message) else {
            continue;
        };
        check_status(&method, &reply);
        session = session_in(&reply.body).or(session);
    }
    server::get().check_sometimes();
}

fn check_status(method: &str, reply: &CallReply) {
    let CallReply { code, reason, .. } = reply;
    // The transport reports a message that cannot be decoded as an internal error.
    let undecodable = reason.contains("decode") || reason.contains("compress");
    let failed = *code == UNKNOWN || *code == INTERNAL && !undecodable;
    assert!(!failed, "status {code} of {method:?}: {reason}");
}

/// Replaces the name of a session, the first field of most messages, by that of an open session.
fn with_session(message: &[u8], session: Option<&str>) -> Vec<u8> {
    if let (Some(session), [0x0a, length, rest @ ..]) = (session, message)
        && let Some((name, rest)) = rest.split_at_checked(usize::from(*length))
        && name.starts_with(b"m:")
    {
        let head = [0x0a, session.len() as u8];
        return [&head, session.as_bytes(), rest].concat();
    }
    message.to_vec()
}

/// Finds the name of a session in a reply.
fn session_in(body: &[u8]) -> Option<String> {
    let at = body.windows(2).position(|window| window == b"m:")?;
    let digits = body[at + 2..].iter().take_while(|b| b.is_ascii_digit());
    let end = at + 2 + digits.count();
    String::from_utf8(body[at..end].to_vec()).ok()
}
