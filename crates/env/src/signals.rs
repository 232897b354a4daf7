//! Waiting for the two signals that ask a server to stop. Never a handler: handlers run between
//! any two instructions, a waiting thread runs at a place of its own.

use std::io;

/// What asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGTERM, as from a service manager.
    Terminate,
    /// SIGUSR1, by which memcached ends gracefully; only waited for where it is asked for.
    User,
}

/// Keeps SIGINT and SIGTERM from ending the process, so that [`wait_for_shutdown`] receives them.
/// Called first in `main`: threads inherit it from the one that spawns them.
pub fn block_shutdown_signals() {
    let set = shutdown_set();
    // SAFETY: `set` is initialised and outlives the call; the old mask is not asked for.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    // EINVAL for a wrong `how` is the only error.
    assert_eq!(failed, 0, "pthread_sigmask refused SIG_BLOCK");
}

/// Blocks until SIGINT or SIGTERM arrives.
pub fn wait_for_shutdown() -> io::Result<Signal> {
    block_shutdown_signals();
    let set = shutdown_set();
    let mut signal = 0;
    // SAFETY: both pointers are to values that outlive the call.
    match unsafe { libc::sigwait(&set, &mut signal) } {
        0 if signal == libc::SIGINT => Ok(Signal::Interrupt),
        0 => Ok(Signal::Terminate),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Asks the process `pid`, a child of this one, to end.
pub fn terminate(pid: u32) -> io::Result<()> {
    // SAFETY: no pointers; a wrong number is an error, and a child keeps its own until waited for.
    match unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// As [`block_shutdown_signals`], SIGUSR1 included.
pub fn block_shutdown_and_user_signals() {
    block_shutdown_signals();
    let set = set_of(&[libc::SIGUSR1]);
    // SAFETY: as in `block_shutdown_signals`.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    assert_eq!(failed, 0, "pthread_sigmask refused SIG_BLOCK");
}

/// Whether one of the blocked signals arrives within `time`.
pub fn wait_for_signal(time: std::time::Duration) -> io::Result<Option<Signal>> {
    let set = set_of(&[libc::SIGINT, libc::SIGTERM, libc::SIGUSR1]);
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    };
    // SAFETY: set and time outlive the call; nothing is asked to be written.
    match unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &time) } {
        libc::SIGINT => Ok(Some(Signal::Interrupt)),
        libc::SIGTERM => Ok(Some(Signal::Terminate)),
        libc::SIGUSR1 => Ok(Some(Signal::User)),
        _ => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
            e => Err(e),
        },
    }
}

fn shutdown_set() -> libc::sigset_t {
    set_of(&[libc::SIGINT, libc::SIGTERM])
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: sigset_t is a plain C struct for which all zeros is a value; sigemptyset and
    // sigaddset only write to it, and the signal numbers exist.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks;

    #[test]
    fn a_blocked_signal_ends_the_wait() {
        let waiter = tasks::spawn("signal-test", || {
            block_shutdown_signals();
            // SAFETY: raises a signal that this very thread has blocked; no pointers.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
            assert_eq!(wait_for_shutdown().unwrap(), Signal::Terminate);
        });
        waiter.unwrap().join();
    }
}
