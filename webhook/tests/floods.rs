//! Floods of connections, handshakes and HTTP/2 frames: whoever has a connection is answered meanwhile, memory stays
//! within a bound, and afterwards new connections are served.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::process::{self, Process};
use common::{CLUSTER, cluster, update};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const MEBIBYTE: u64 = 1 << 20;
/// What is not taken for so long is held back.
const HELD_BACK: Duration = Duration::from_secs(1);
/// The streams that a connection may have open at once.
const STREAMS: u32 = 250;

#[test]
#[ignore = "the server of the other tests: they start it themselves"]
fn serves_for_the_other_tests() {
    process::serve();
}

/// A client that does nothing but ask, over one connection.
struct Good(SendRequest<Full<Bytes>>);

impl Good {
    async fn connect(process: &Process) -> Self {
        let io = TokioIo::new(process.connect(&["h2"]).await);
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    async fn asks(&mut self) {
        let body = update(&cluster(json!({})), &cluster(json!({"a": "b"}))).to_string();
        let request = http::Request::post(format!("https://localhost{CLUSTER}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        self.0.ready().await.unwrap();
        let answer = self.0.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let answer = answer.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["response"]["allowed"], true);
    }
}

/// Asks all the while `flood` goes on; what it came to, and by how much memory the server grew meanwhile at most.
async fn during<T, F>(name: &str, flood: impl FnOnce(Arc<Process>) -> F) -> (T, u64)
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let process = Arc::new(Process::start());
    let mut good = Good::connect(&process).await;
    for _ in 0..50 {
        good.asks().await;
    }
    let idle = process.memory("VmRSS:");
    let flood = tokio::spawn(flood(process.clone()));
    let (mut asked, mut slowest) = (0, Duration::ZERO);
    while asked < 20 || !flood.is_finished() {
        let begun = Instant::now();
        good.asks().await;
        slowest = slowest.max(begun.elapsed());
        asked += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let came_to = flood.await.unwrap();
    let grew = process.memory("VmHWM:").saturating_sub(idle);
    Good::connect(&process).await.asks().await;
    println!("{name}: {asked} good answers, the slowest took {slowest:?}, {} KiB more memory", grew / 1024);
    (came_to, grew)
}

/// HTTP/2 by hand, as no client library would speak it.
struct Frames {
    writes: WriteHalf<TlsStream<TcpStream>>,
    reads: ReadHalf<TlsStream<TcpStream>>,
    next: u32,
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

fn frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    to.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// HPACK of a literal that is not kept: `name` is an index or a text.
fn literal(to: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    to.extend_from_slice(name);
    length(to, value.len());
    to.extend_from_slice(value);
}

/// HPACK's integer with seven bits in the first byte.
fn length(to: &mut Vec<u8>, mut n: usize) {
    if n < 127 {
        to.push(u8::try_from(n).unwrap());
        return;
    }
    to.push(127);
    n -= 127;
    while n >= 128 {
        to.push(u8::try_from(n % 128).unwrap() | 128);
        n /= 128;
    }
    to.push(u8::try_from(n).unwrap());
}

/// The head of a review.
fn head() -> Vec<u8> {
    let mut block = vec![0x83, 0x87];
    literal(&mut block, &[0x04], CLUSTER.as_bytes());
    literal(&mut block, &[0x01], b"localhost");
    literal(&mut block, &[0x0f, 0x10], b"application/json");
    block
}

impl Frames {
    async fn open(process: &Process) -> Self {
        let (reads, writes) = tokio::io::split(process.connect(&["h2"]).await);
        let mut this = Self { writes, reads, next: 1 };
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut hello, SETTINGS, 0, 0, &[]);
        frame(&mut hello, SETTINGS, 1, 0, &[]);
        assert!(this.sends(&hello).await);
        this
    }

    fn stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Whether it was taken; not when the connection is closed, or the server reads no more.
    async fn sends(&mut self, bytes: &[u8]) -> bool {
        let sent = async {
            self.writes.write_all(bytes).await?;
            self.writes.flush().await
        };
        matches!(tokio::time::timeout(HELD_BACK, sent).await, Ok(Ok(())))
    }

    /// Takes what has come; false when the server closed.
    async fn takes(&mut self) -> bool {
        let mut some = [0; 1 << 14];
        loop {
            match tokio::time::timeout(Duration::from_millis(2), self.reads.read(&mut some)).await {
                Ok(Ok(0) | Err(_)) => return false,
                Ok(Ok(_)) => {}
                Err(_) => return true,
            }
        }
    }
}

/// Opens connection after connection, each for as long as `turn` says, until `turns` were had. How many connections
/// that took.
async fn over_and_over<F>(process: Arc<Process>, turns: usize, reads: bool, turn: F) -> usize
where
    F: Fn(&mut Frames) -> Vec<Vec<u8>>,
{
    let (mut had, mut connections) = (0, 0);
    // What is held back stays open: it must cost nothing.
    let mut open = Vec::new();
    while had < turns {
        let mut frames = Frames::open(&process).await;
        connections += 1;
        'open: while had < turns {
            for bytes in turn(&mut frames) {
                if !frames.sends(&bytes).await || reads && !Box::pin(frames.takes()).await {
                    break 'open;
                }
            }
            had += 1;
        }
        // Also a turn that was cut off was one.
        had += 1;
        open.push(frames);
    }
    connections
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_at_once_over_and_over_cost_nobody_else_anything() {
    let both = |frames: &mut Frames| {
        let mut bytes = Vec::new();
        for _ in 0..STREAMS {
            let stream = frames.stream();
            frame(&mut bytes, HEADERS, END_HEADERS, stream, &head());
            frame(&mut bytes, RST_STREAM, 0, stream, &8u32.to_be_bytes());
        }
        vec![bytes]
    };
    let (connections, grew) = during("resets", |process| over_and_over(process, 100, true, both)).await;
    println!("{connections} connections for 25,000 resets");
    assert!(connections > 1, "nobody who resets at once is sent away");
    assert!(grew < 16 * MEBIBYTE, "{grew}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_once_they_are_begun_cost_nobody_else_anything() {
    // The requests are under way when they are cancelled.
    let apart = |frames: &mut Frames| {
        let (mut begin, mut reset) = (Vec::new(), Vec::new());
        for _ in 0..STREAMS {
            let stream = frames.stream();
            frame(&mut begin, HEADERS, END_HEADERS, stream, &head());
            frame(&mut reset, RST_STREAM, 0, stream, &8u32.to_be_bytes());
        }
        vec![begin, reset]
    };
    let (connections, grew) = during("late resets", |process| over_and_over(process, 100, true, apart)).await;
    println!("{connections} connections for 25,000 resets");
    assert!(connections > 1, "nobody who cancels everything is sent away");
    assert!(grew < 16 * MEBIBYTE, "{grew}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_without_an_end_are_cut_off() {
    for (name, piece) in [("large", 16_000), ("small", 1), ("empty", 0)] {
        let (sent, grew) = during(name, move |process| async move {
            let mut longest = 0;
            for _ in 0..10 {
                let mut frames = Frames::open(&process).await;
                let stream = frames.stream();
                let mut bytes = Vec::new();
                frame(&mut bytes, HEADERS, 0, stream, &head());
                let mut filler = Vec::new();
                literal(&mut filler, &[0, 3, b'x', b'-', b'y'], &vec![b'a'; piece.max(20) - 10]);
                filler.truncate(piece);
                for _ in 0..20 {
                    frame(&mut bytes, CONTINUATION, 0, stream, &filler);
                }
                let mut sent = 0;
                while sent < 64 << 20 && frames.sends(&bytes).await && Box::pin(frames.takes()).await {
                    sent += bytes.len();
                }
                longest = longest.max(sent);
            }
            longest
        })
        .await;
        println!("{name}: closed after {sent} bytes");
        assert!(sent < 4 << 20, "{name}: a head goes on for ever");
        assert!(grew < 16 * MEBIBYTE, "{name}: {grew}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_unfold_to_megabytes_are_refused() {
    let bomb = |frames: &mut Frames| {
        let mut bytes = Vec::new();
        for _ in 0..STREAMS {
            let stream = frames.stream();
            let mut block = head();
            // Kept in the table under index 62, and named thousands of times.
            block.extend_from_slice(&[0x40, 3, b'x', b'-', b'z']);
            length(&mut block, 3000);
            block.resize(block.len() + 3000, b'a');
            block.resize(block.len() + 8000, 0x80 | 0x3e);
            frame(&mut bytes, HEADERS, END_HEADERS | 1, stream, &block);
        }
        vec![bytes]
    };
    let (_, grew) = during("unfolding", |process| over_and_over(process, 8, true, bomb)).await;
    assert!(grew < 32 * MEBIBYTE, "{grew}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_ask_for_an_answer_are_taken_no_faster_than_their_answers() {
    let thousands = |kind: u8, stream: u32, payload: &'static [u8]| {
        move |_: &mut Frames| {
            let mut bytes = Vec::new();
            (0..10_000).for_each(|_| frame(&mut bytes, kind, 0, stream, payload));
            vec![bytes]
        }
    };
    for reads in [false, true] {
        for (name, kind, payload) in [
            ("pings", PING, &[7; 8][..]),
            ("settings", SETTINGS, &[]),
            ("header table sizes", SETTINGS, &[0, 1, 0, 0, 16, 0]),
            ("window updates", WINDOW_UPDATE, &[0, 0, 0, 0]),
        ] {
            let name = format!("{name}, {}", if reads { "answers taken" } else { "answers left" });
            let flood = thousands(kind, 0, payload);
            let (connections, grew) =
                during(&name, move |process| over_and_over(process, 30, reads, flood)).await;
            println!("{name}: {connections} connections");
            assert!(grew < 24 * MEBIBYTE, "{name}: {grew}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_a_stream_that_carry_nothing_pile_up_nowhere() {
    for (name, kind, payload) in [("empty data", DATA, &[][..]), ("priorities", PRIORITY, &[0, 0, 0, 0, 9])] {
        let nothing = move |frames: &mut Frames| {
            let stream = frames.stream();
            let mut bytes = Vec::new();
            frame(&mut bytes, HEADERS, END_HEADERS, stream, &head());
            (0..10_000).for_each(|_| frame(&mut bytes, kind, 0, stream, payload));
            vec![bytes]
        };
        let (_, grew) = during(name, move |process| over_and_over(process, 30, true, nothing)).await;
        assert!(grew < 24 * MEBIBYTE, "{name}: {grew}");
    }
}

/// As many as there are file descriptors for, `wanted` at most.
fn raised(wanted: usize) -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The server inherits it.
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let there = usize::try_from(hard).unwrap_or(usize::MAX).saturating_sub(200).min(wanted);
    println!("{there} connections with {hard} file descriptors");
    there
}

/// The first bytes of a real handshake.
fn half_a_hello(process: &Process) -> Vec<u8> {
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(process.tls(&["h2"]), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello.truncate(hello.len() / 2);
    hello
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_connections_at_once_delay_nobody_who_has_one() {
    let count = raised(2000);
    // Silent, in the midst of a handshake, and open without a request.
    let (open, grew) = during("connections", move |process| async move {
        let hello = half_a_hello(&process);
        let mut raw = Vec::new();
        for _ in 0..count / 2 {
            raw.push(TcpStream::connect(process.address).await.unwrap());
            let mut half = TcpStream::connect(process.address).await.unwrap();
            half.write_all(&hello).await.unwrap();
            raw.push(half);
        }
        let open = raw.len();
        // While they are all there.
        let mut late = Good::connect(&process).await;
        late.asks().await;
        open
    })
    .await;
    println!("{open} connections, {} bytes each", grew / open as u64);
    assert!(grew / (open as u64) < 32 * 1024, "{grew} for {open} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_than_there_is_room_for_are_closed_and_the_others_served() {
    let count = raised(3000);
    let (closed, grew) = during("too many", move |process| async move {
        let mut raw = Vec::new();
        for _ in 0..count {
            raw.extend(TcpStream::connect(process.address).await);
        }
        let mut closed = 0;
        for stream in &mut raw {
            let mut byte = [0];
            let read = tokio::time::timeout(Duration::from_millis(1), stream.read(&mut byte)).await;
            closed += usize::from(read.is_ok());
        }
        closed
    })
    .await;
    println!("{closed} of {count} were closed at once or by now, {grew} bytes more");
    assert!(count < 2048 || closed > 0, "there is room for everybody");
    assert!(grew < 32 * MEBIBYTE, "{grew}");
}
