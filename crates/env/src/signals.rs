//! Waiting for the signals that ask a process to stop. Never a handler: handlers run between
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

/// Has a write past the length that this process may give a file (`ulimit -f`) fail, as one to a full disk
/// does: else a signal ends the process there without a word. Called first in `main`.
pub fn outlive_file_size_limit() {
    // SAFETY: SIGXFSZ is a signal, and to ignore it runs no code of ours.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    assert_ne!(before, libc::SIG_ERR, "signal refused SIGXFSZ");
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

/// Those by which a command is ended from its terminal or from elsewhere, and that this process was
/// not told to ignore, as `nohup` tells of SIGHUP and a shell of SIGINT behind `&`.
#[derive(Clone, Copy)]
pub struct Endings(libc::sigset_t);

impl Endings {
    /// Keeps SIGINT, SIGTERM and SIGHUP from ending the process, so that [`Endings::wait`] receives
    /// them. Called before any thread is spawned: one that was spawned before would be ended, and
    /// the process with it.
    pub fn block() -> Endings {
        let mut endings = Vec::new();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: sigaction is a plain C struct for which all zeros is a value; without a new
            // action the call only writes the present one to it.
            let action = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut action);
                action.sa_sigaction
            };
            if action != libc::SIG_IGN {
                endings.push(signal);
            }
        }
        let set = set_of(&endings);
        // SAFETY: as in `block_shutdown_signals`.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        assert_eq!(failed, 0, "pthread_sigmask refused SIG_BLOCK");
        Endings(set)
    }

    /// Blocks until one arrives.
    pub fn wait(&self) -> io::Result<Ending> {
        let mut signal = 0;
        // SAFETY: both pointers are to values that outlive the call.
        match unsafe { libc::sigwait(&self.0, &mut signal) } {
            0 => Ok(Ending(signal)),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// A signal that asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending(libc::c_int);

impl Ending {
    /// Ends the process as the signal would have: whoever waits for it sees which it was.
    pub fn end(self) -> ! {
        let set = set_of(&[self.0]);
        // SAFETY: the set outlives the calls, and the signal exists. It arrives at this thread,
        // which unblocks it last.
        unsafe {
            libc::signal(self.0, libc::SIG_DFL);
            libc::pthread_kill(libc::pthread_self(), self.0);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        }
        // Not reached: the default of these signals is to end the process.
        std::process::exit(128 + self.0)
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
