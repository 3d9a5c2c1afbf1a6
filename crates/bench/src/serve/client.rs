//! A minimal HTTP client that costs a connection and a buffer.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

use crate::BenchError;

/// Read timeout, longer than any token takes.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Completion that streams over HTTP.
pub struct CompletionStream {
    from: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl CompletionStream {
    /// Sends the request and checks the status line.
    pub fn open(port: u16, body: &Value) -> Result<Self, BenchError> {
        let mut to = TcpStream::connect(("127.0.0.1", port))?;
        to.set_nodelay(true)?;
        to.set_read_timeout(Some(READ_TIMEOUT))?;
        let body = body.to_string();
        write!(
            to,
            "POST /v1/completions HTTP/1.1\r\nhost: djinn\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut stream = CompletionStream {
            from: BufReader::new(to),
            line: Vec::new(),
        };
        stream.read_line()?;
        let status = String::from_utf8_lossy(&stream.line).trim().to_owned();
        match status.contains(" 200 ") {
            true => Ok(stream),
            false => Err(BenchError::ServerReply(status)),
        }
    }

    fn read_line(&mut self) -> Result<bool, BenchError> {
        self.line.clear();
        Ok(self.from.read_until(b'\n', &mut self.line)? > 0)
    }

    /// Waits for the next token; returns `false` at the end.
    pub fn next(&mut self) -> Result<bool, BenchError> {
        loop {
            if !self.read_line()? {
                return Err(BenchError::StreamEnded);
            }
            let Some(data) = self.line.strip_prefix(b"data: ") else {
                continue;
            };
            if data.starts_with(b"[DONE]") {
                return Ok(false);
            }
            if data.starts_with(b"{\"error\"") {
                let reply = String::from_utf8_lossy(data).into_owned();
                return Err(BenchError::ServerReply(reply));
            }
            // The event with the finish reason has no token.
            if has_finish_reason(data) {
                continue;
            }
            return Ok(true);
        }
    }
}

/// Whether an event carries a finish reason.
fn has_finish_reason(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    text.contains("\"finish_reason\":\"")
}

/// Opens connections that send nothing.
pub fn open_silent(port: u16, count: usize) -> Result<Vec<TcpStream>, BenchError> {
    let connect = |_| TcpStream::connect(("127.0.0.1", port));
    Ok((0..count).map(connect).collect::<Result<_, _>>()?)
}
