//! A host's end of a link, which sends frames at a rate, and counts and times received ones.

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

/// The number of frames in a burst. BMv2 loses larger bursts at its input.
const BURST: usize = 16;
/// The shortest gap to sleep in. In shorter gaps the thread spins, which takes time from switches and clients on the same CPU.
const SLEEP: Duration = Duration::from_micros(10);

/// An interface of this network namespace, opened for whole frames.
pub struct Link {
    socket: OwnedFd,
}

impl Link {
    /// Opens the interface to send only, so that the kernel copies no received frames.
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
        // Discards frames that came before the socket was bound to this interface.
        link.drain();
        Ok(link)
    }

    /// Discards received frames.
    pub fn drain(&self) {
        let mut frame = [0; 64];
        while recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT).is_ok() {}
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        nix::sys::socket::send(self.socket.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }

    /// Spins until a frame arrives; returns its length.
    pub fn receive(&self, frame: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            match recv(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => return Ok(len),
                Err(Errno::EAGAIN) if start.elapsed() < timeout => std::hint::spin_loop(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a frame repeatedly for `span`, `rate` times a second or as fast as the kernel accepts it. Returns the number of
    /// frames.
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

/// The number of frames that these interfaces have received.
pub fn received(interfaces: &[String]) -> io::Result<u64> {
    // The namespace of this thread; /proc/net is that of the process's first thread.
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let counts = table.lines().filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        if !interfaces.iter().any(|wanted| wanted == name.trim()) {
            return None;
        }
        // The columns are bytes, packets and more (proc_pid_net(5)).
        counts.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Ok(counts.sum())
}
