//! Small HTTP server that can simulate errors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::repo::{ID, SHA};

/// Request of a client.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the first byte of the requested range.
    pub fn from(&self) -> usize {
        let range = self.header("range").and_then(|r| r.strip_prefix("bytes="));
        range.map_or(0, |r| r.trim_end_matches('-').parse().unwrap())
    }

    pub fn is_for(&self, file: &str) -> bool {
        self.path == format!("/{ID}/resolve/{SHA}/{file}")
    }

    fn read(stream: &TcpStream) -> Option<Self> {
        let mut lines = BufReader::new(stream).lines();
        let first = lines.next()?.ok()?;
        let path = first.split(' ').nth(1)?.to_owned();
        let mut headers = Vec::new();
        for line in lines {
            let line = line.ok()?;
            let Some((key, value)) = line.split_once(": ") else {
                break;
            };
            headers.push((key.to_ascii_lowercase(), value.to_owned()));
        }
        Some(Self { path, headers })
    }
}

/// Response of the server.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Number of bytes of the body to send before closing the connection.
    cut: Option<usize>,
    /// Whether to send the length of the body. Otherwise the body ends with the connection.
    sized: bool,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self {
            status,
            sized: true,
            ..Self::default()
        }
    }

    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..Self::status(200)
        }
    }

    /// Responds like a server that supports ranges.
    pub fn ranged(body: &[u8], from: usize) -> Self {
        let whole = body.len();
        if from == 0 {
            Self::ok(body)
        } else if from >= whole {
            Self::status(416).with("content-range", &format!("bytes */{whole}"))
        } else {
            let range = format!("bytes {from}-{}/{whole}", whole - 1);
            Self {
                body: body[from..].to_vec(),
                ..Self::status(206)
            }
            .with("content-range", &range)
        }
    }

    pub fn redirect(location: &str) -> Self {
        Self::status(302).with("location", location)
    }

    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.headers.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn cut_at(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }

    pub fn unsized_body(mut self) -> Self {
        self.sized = false;
        self
    }

    fn send(&self, mut stream: &TcpStream) -> usize {
        let mut head = format!("HTTP/1.1 {} -\r\nconnection: close\r\n", self.status);
        for (key, value) in &self.headers {
            head += &format!("{key}: {value}\r\n");
        }
        if self.sized {
            head += &format!("content-length: {}\r\n", self.body.len());
        }
        let body = &self.body[..self.cut.unwrap_or(self.body.len())];
        // In some tests the client closes the connection early.
        let _ = stream.write_all(format!("{head}\r\n").as_bytes());
        let _ = stream.write_all(body);
        body.len()
    }
}

/// Server that records requests and the number of bytes sent.
pub struct Server {
    pub url: String,
    log: Arc<Mutex<Vec<(Request, usize)>>>,
    stop: Arc<AtomicBool>,
    address: std::net::SocketAddr,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self {
            url: format!("http://{address}"),
            log: Arc::default(),
            stop: Arc::default(),
            address,
        };
        let (log, stop) = (server.log.clone(), server.stop.clone());
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (log, answer) = (log.clone(), answer.clone());
                thread::spawn(move || serve(&stream.unwrap(), &log, &*answer));
            }
        });
        server
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        let log = self.log.lock().unwrap();
        log.iter().map(|(request, _)| request.clone()).collect()
    }

    /// Returns the requests for one file so far: first requested byte and number of bytes sent.
    pub fn sent(&self, file: &str) -> Vec<(usize, usize)> {
        let log = self.log.lock().unwrap();
        let of_file = log.iter().filter(|(request, _)| request.is_for(file));
        of_file
            .map(|(request, sent)| (request.from(), *sent))
            .collect()
    }

    pub fn forget(&self) {
        self.log.lock().unwrap().clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(
    stream: &TcpStream,
    log: &Mutex<Vec<(Request, usize)>>,
    answer: &dyn Fn(&Request) -> Reply,
) {
    let Some(request) = Request::read(stream) else {
        return;
    };
    let reply = answer(&request);
    let body = reply.cut.unwrap_or(reply.body.len());
    log.lock().unwrap().push((request, body));
    reply.send(stream);
    // Closing before the client has read everything would lose data.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.take(1).read(&mut [0]);
}
