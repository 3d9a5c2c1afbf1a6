//! Clients that cost little: a connection and a buffer each.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

use crate::failure::Failure;

/// Longer than any token takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A completion that streams.
pub struct Stream {
    from: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl Stream {
    /// Asks for one.
    pub fn open(port: u16, body: &Value) -> Result<Self, Failure> {
        let mut to = TcpStream::connect(("127.0.0.1", port))?;
        to.set_nodelay(true)?;
        to.set_read_timeout(Some(PATIENCE))?;
        let body = body.to_string();
        write!(
            to,
            "POST /v1/completions HTTP/1.1\r\nhost: djinn\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut stream = Stream {
            from: BufReader::new(to),
            line: Vec::new(),
        };
        stream.read_line()?;
        let status = String::from_utf8_lossy(&stream.line).trim().to_owned();
        match status.contains(" 200 ") {
            true => Ok(stream),
            false => Err(Failure::Message(format!("the server answered {status}"))),
        }
    }

    fn read_line(&mut self) -> Result<bool, Failure> {
        self.line.clear();
        Ok(self.from.read_until(b'\n', &mut self.line)? > 0)
    }

    /// Waits for the next token; `false` at the end.
    pub fn next(&mut self) -> Result<bool, Failure> {
        loop {
            if !self.read_line()? {
                return Err(Failure::Message("the stream broke off".into()));
            }
            let Some(data) = self.line.strip_prefix(b"data: ") else {
                continue;
            };
            if data.starts_with(b"[DONE]") {
                return Ok(false);
            }
            if data.starts_with(b"{\"error\"") {
                return Err(Failure::Message(String::from_utf8_lossy(data).into_owned()));
            }
            // The last piece of a choice has no token.
            if says_why(data) {
                continue;
            }
            return Ok(true);
        }
    }
}

/// Whether a piece says why it is the last.
fn says_why(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    text.contains("\"finish_reason\":\"")
}

/// Connections that say nothing.
pub fn silent(port: u16, count: usize) -> Result<Vec<TcpStream>, Failure> {
    let connect = |_| TcpStream::connect(("127.0.0.1", port));
    Ok((0..count).map(connect).collect::<Result<_, _>>()?)
}
