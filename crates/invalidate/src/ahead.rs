//! What was read of a log and is not taken yet: from the reader, which runs on a runtime, to the thread that
//! waits until changes are visible. Bounded in transactions and in keys: while a replica rests, or the cluster
//! is away, the log waits in the database.

use crate::source::{Read, TRANSACTION_KEYS_MAX};
use holdfast_base::Result;
use holdfast_env::runtime::sleep;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Transactions that are read ahead, and as many that wait until they are visible.
pub const AHEAD: usize = 1024;
/// Their keys, which one transaction may pass.
pub const AHEAD_KEYS: usize = 500_000;
/// Before something is given again for which there was no room.
pub const REST: Duration = Duration::from_millis(10);
const _: () = assert!(TRANSACTION_KEYS_MAX <= AHEAD_KEYS);

/// The reader's end.
pub struct Tells<M> {
    reads: SyncSender<Result<Read<M>>>,
    keys: Arc<AtomicUsize>,
}

/// The other one.
pub struct Reads<M> {
    reads: Receiver<Result<Read<M>>>,
    keys: Arc<AtomicUsize>,
}

/// What became of something that was read.
pub enum Given<M> {
    Taken,
    /// There is no room now.
    Full(Result<Read<M>>),
    /// Nobody will ever take it.
    Over,
}

pub fn ahead<M>() -> (Tells<M>, Reads<M>) {
    let ((give, take), keys) = (sync_channel(AHEAD), Arc::<AtomicUsize>::default());
    (Tells { reads: give, keys: keys.clone() }, Reads { reads: take, keys })
}

fn keys_of<M>(read: &Result<Read<M>>) -> usize {
    match read {
        Ok(Read::Change(change, _)) => change.keys.as_ref().map_or(0, Vec::len),
        Ok(Read::Quiet(_)) | Err(_) => 0,
    }
}

impl<M> Tells<M> {
    /// Gives what was read next, if there is room.
    pub fn give(&self, read: Result<Read<M>>) -> Given<M> {
        let keys = keys_of(&read);
        if keys > 0 && self.keys.load(Ordering::Relaxed) >= AHEAD_KEYS {
            return Given::Full(read);
        }
        // Before anybody can take them.
        self.keys.fetch_add(keys, Ordering::Relaxed);
        match self.reads.try_send(read) {
            Ok(()) => Given::Taken,
            Err(TrySendError::Full(back)) => {
                self.keys.fetch_sub(keys, Ordering::Relaxed);
                Given::Full(back)
            }
            Err(TrySendError::Disconnected(_)) => Given::Over,
        }
    }

    /// The same, once there is room. False if nobody will ever take it.
    pub async fn give_in_time(&self, mut read: Result<Read<M>>) -> bool {
        loop {
            match self.give(read) {
                Given::Taken => return true,
                Given::Full(back) => read = back,
                Given::Over => return false,
            }
            sleep(REST).await;
        }
    }
}

impl<M> Reads<M> {
    /// What was read next, if that is there.
    pub fn take(&self) -> Option<Result<Read<M>>> {
        let read = self.reads.try_recv().ok()?;
        self.keys.fetch_sub(keys_of(&read), Ordering::Relaxed);
        Some(read)
    }

    /// The same; waits for it.
    pub fn wait(
        &self,
        patience: Duration,
    ) -> std::result::Result<Result<Read<M>>, RecvTimeoutError> {
        let read = self.reads.recv_timeout(patience)?;
        self.keys.fetch_sub(keys_of(&read), Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Change;
    use holdfast_base::Error;

    fn change(keys: usize) -> Result<Read<u32>> {
        let keys = Some(vec![b"k".to_vec(); keys]);
        Ok(Read::Change(Change { mark: 0, changed_s: 0, keys }, None))
    }

    /// A thousand transactions of a hundred thousand keys were read ahead while a standby rested, and as many
    /// waited behind them: gigabytes.
    #[test]
    fn transactions_are_read_ahead_up_to_so_many_and_so_many_keys() {
        let (tells, reads) = ahead();
        let mut taken = 0;
        while let Given::Taken = tells.give(change(TRANSACTION_KEYS_MAX)) {
            taken += 1;
        }
        assert_eq!(taken, AHEAD_KEYS / TRANSACTION_KEYS_MAX);
        assert!(matches!(tells.give(change(0)), Given::Taken), "what has none has room");
        assert!(matches!(tells.give(Err(Error::retry("x"))), Given::Taken));
        reads.take().unwrap().unwrap();
        assert!(matches!(tells.give(change(1)), Given::Taken));
        while reads.take().is_some() {}
        for _ in 0..AHEAD {
            assert!(matches!(tells.give(change(1)), Given::Taken));
        }
        let Given::Full(back) = tells.give(change(7)) else { panic!("it is bounded") };
        assert_eq!(keys_of(&back), 7);
        while reads.wait(Duration::ZERO).is_ok() {}
        assert_eq!(reads.keys.load(Ordering::Relaxed), 0, "nothing is counted that is not there");
        drop(reads);
        assert!(matches!(tells.give(change(1)), Given::Over));
    }
}
