//! Background traffic in a fabric, outside of jobs.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a datagram's payload: with its headers it fits Ethernet's usual MTU.
const PAYLOAD: usize = 1_458;
/// Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// The longest delay of a sender behind its rate; it skips datagrams beyond that.
const MAX_LAG: Duration = Duration::from_millis(10);
/// Interval of attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Receives at `address` forever, over `udp` or TCP. Calls `ready` when it listens.
///
/// # Errors
/// The address is in use, or not an address of this host.
pub fn receive(address: SocketAddr, udp: bool, ready: impl FnOnce()) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    if udp {
        let socket = UdpSocket::bind(address)?;
        ready();
        loop {
            socket.recv(&mut buffer)?;
        }
    }
    let listener = TcpListener::bind(address)?;
    ready();
    loop {
        let (mut stream, _) = listener.accept()?;
        // One sender at a time, until its connection ends.
        while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
    }
}

/// Sends datagrams at `rate` bits per second forever.
///
/// # Errors
/// There is no route to `address`.
pub fn send_udp(address: SocketAddr, rate: u64) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(address)?;
    let bits = ((PAYLOAD + HEADERS) * 8) as f64;
    let gap = Duration::from_secs_f64(bits / rate as f64);
    let payload = [0; PAYLOAD];
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        if let Some(wait) = due.checked_duration_since(now) {
            thread::sleep(wait);
        } else if now - due > MAX_LAG {
            due = now;
        }
        // A full queue or a missing receiver loses this datagram; the next may arrive.
        let _ = socket.send(&payload);
        due += gap;
    }
}

/// Keeps a connection to `address` busy forever, and reconnects when it breaks.
pub fn send_tcp(address: SocketAddr) -> ! {
    let data = vec![0; 1 << 16];
    loop {
        if let Ok(mut stream) = TcpStream::connect(address) {
            while stream.write_all(&data).is_ok() {}
        }
        thread::sleep(RETRY_INTERVAL);
    }
}
