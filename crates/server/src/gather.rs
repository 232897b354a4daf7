//! Answers to the parts of one request, from any threads and in any order.

use holdfast_base::Result;
use holdfast_env::HoldMutex;
use holdfast_log::Done;
use std::sync::{Arc, Mutex};

/// Tells of all parts at once; of the first that failed, if one did.
pub struct Gather<T>(Mutex<Gathered<T>>);

struct Gathered<T> {
    came: Vec<Option<Result<T>>>,
    left: usize,
    done: Option<Done<Vec<T>>>,
}

impl<T: Send + 'static> Gather<T> {
    /// Of none it is told at once.
    pub fn new(count: usize, done: impl FnOnce(Result<Vec<T>>) + Send + 'static) -> Arc<Gather<T>> {
        let mut gathered = Gathered {
            came: (0..count).map(|_| None).collect(),
            left: count,
            done: Some(Box::new(done)),
        };
        if count == 0
            && let Some(done) = gathered.done.take()
        {
            done(Ok(Vec::new()));
        }
        Arc::new(Gather(Mutex::new(gathered)))
    }

    /// Part `at` came to this.
    pub fn came(&self, at: usize, part: Result<T>) {
        let (came, done) = {
            let mut gathered = self.0.held();
            assert!(gathered.came[at].is_none(), "part {at} comes once");
            gathered.came[at] = Some(part);
            gathered.left -= 1;
            if gathered.left > 0 {
                return;
            }
            (std::mem::take(&mut gathered.came), gathered.done.take())
        };
        if let Some(done) = done {
            done(came.into_iter().flatten().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Error;
    use std::sync::mpsc;

    #[test]
    fn parts_are_told_together_in_their_order_and_the_first_error_instead_of_them() {
        let gather = |parts: &[(usize, Result<u8>)]| {
            let (told, hears) = mpsc::channel();
            let gather = Gather::new(parts.len(), move |all| told.send(all).unwrap());
            for (at, part) in parts {
                assert!(hears.try_recv().is_err());
                gather.came(*at, part.clone());
            }
            hears.try_recv().unwrap()
        };
        assert_eq!(gather(&[]), Ok(vec![]));
        assert_eq!(gather(&[(1, Ok(8)), (2, Ok(9)), (0, Ok(7))]), Ok(vec![7, 8, 9]));
        let (first, second) = (Error::retry("first"), Error::retry("second"));
        assert_eq!(gather(&[(1, Err(second)), (0, Err(first.clone()))]), Err(first));
    }
}
