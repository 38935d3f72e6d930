//! A host's end of a link: frames out at a given rate, frames counted, frames timed.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, MultiHeaders, SockFlag, SockProtocol, SockType, bind, recv,
    sendmmsg, setsockopt, socket, sockopt,
};

/// Frames handed to the kernel at once. BMv2 loses larger bursts at its input before they reach P4.
const BURST: usize = 16;
/// Gaps that are slept away; shorter ones are spun away, because no sleep is shorter.
const SLEEP: Duration = Duration::from_micros(100);

/// An interface of this network namespace, opened for whole frames.
pub struct Link {
    socket: OwnedFd,
}

impl Link {
    /// Opens the interface to send. What arrives there is not copied for anybody.
    pub fn sender(interface: &str) -> io::Result<Self> {
        Self::open(interface, None)
    }

    /// Opens the interface to send and receive.
    pub fn open_both_ways(interface: &str) -> io::Result<Self> {
        Self::open(interface, Some(SockProtocol::EthAll))
    }

    fn open(interface: &str, protocol: Option<SockProtocol>) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )?;
        bind(socket.as_raw_fd(), &link_address(interface)?)?;
        setsockopt(&socket, sockopt::SndBuf, &(8 << 20))?;
        let link = Self { socket };
        // What other interfaces brought before the socket was bound to this one.
        link.drain();
        Ok(link)
    }

    /// Discards what has arrived.
    pub fn drain(&self) {
        let mut frame = [0; 64];
        while recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT).is_ok() {}
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        nix::sys::socket::send(self.socket.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }

    /// The next frame's length, as soon as it is there; spins for it.
    pub fn receive(&self, frame: &mut [u8], patience: Duration) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            match recv(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => return Ok(len),
                Err(Errno::EAGAIN) if start.elapsed() < patience => std::hint::spin_loop(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a frame again and again for `span`, `rate` times a second or as fast as the kernel
    /// takes it. Tells how often it was sent.
    pub fn generate(&self, frame: &[u8], rate: f64, span: Duration) -> io::Result<u64> {
        let mut headers = MultiHeaders::<()>::preallocate(BURST, None);
        let parts = [[io::IoSlice::new(frame)]; BURST];
        let start = Instant::now();
        let mut sent = 0;
        loop {
            let elapsed = start.elapsed();
            if elapsed >= span {
                return Ok(sent);
            }
            let due = (elapsed.as_secs_f64() * rate) as u64;
            let burst = usize::try_from(due.saturating_sub(sent)).map_or(BURST, |n| n.min(BURST));
            if burst == 0 {
                let next = Duration::from_secs_f64((sent + 1) as f64 / rate);
                let gap = next.saturating_sub(elapsed);
                if gap > SLEEP {
                    thread::sleep(gap);
                }
                continue;
            }
            let fd = self.socket.as_raw_fd();
            let sends = sendmmsg(
                fd,
                &mut headers,
                &parts[..burst],
                [None; BURST],
                [],
                MsgFlags::empty(),
            );
            match sends {
                Ok(results) => sent += results.count() as u64,
                Err(Errno::ENOBUFS | Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn link_address(interface: &str) -> io::Result<LinkAddr> {
    getifaddrs()?
        .filter(|address| address.interface_name == interface)
        .find_map(|address| Some(*address.address?.as_link_addr()?))
        .ok_or_else(|| io::Error::other(format!("there is no interface {interface}")))
}

/// Frames that these interfaces have received since they exist, all together.
pub fn received(interfaces: &[String]) -> io::Result<u64> {
    // Of the calling thread's namespace; /proc/net is of the process's first thread.
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let counts = table.lines().filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        if !interfaces.iter().any(|wanted| wanted == name.trim()) {
            return None;
        }
        // Bytes, packets, ... in proc_pid_net(5).
        counts.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Ok(counts.sum())
}
