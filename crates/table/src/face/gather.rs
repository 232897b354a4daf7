//! Answers to the parts of one request, from any threads and in any order.

use holdfast_base::Result;
use holdfast_env::HoldMutex;
use std::sync::{Arc, Mutex};

/// Who is told when all came.
type Done<T> = Box<dyn FnOnce(Result<Vec<T>>) + Send>;

/// Tells of all parts at once; of the first that failed, if one did.
pub struct Gather<T>(Mutex<Gathered<T>>);

struct Gathered<T> {
    came: Vec<Option<Result<T>>>,
    left: usize,
    done: Option<Done<T>>,
}

impl<T: Send + 'static> Gather<T> {
    /// There is at least one part.
    pub fn new(count: usize, done: impl FnOnce(Result<Vec<T>>) + Send + 'static) -> Arc<Gather<T>> {
        assert!(count > 0, "a request has parts");
        let came = (0..count).map(|_| None).collect();
        Arc::new(Gather(Mutex::new(Gathered { came, left: count, done: Some(Box::new(done)) })))
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
