//! The id that brokers gave a topic when it was made: one that is deleted and made anew has another, and
//! nothing else tells. Unsafe, for the client library's Rust face has no call for it: each object of the
//! library is owned by a guard here, what it lends is read before its owner goes, and nothing of it leaves.
#![allow(unsafe_code)]

use crate::client::Told;
use rdkafka::bindings as sys;
use rdkafka::client::Client;
use rdkafka::error::RDKafkaErrorCode;
use std::ffi::CString;
use std::ptr::NonNull;
use std::time::Duration;

/// Longest that the library's own deadline may be late.
const LATE: Duration = Duration::from_secs(1);

/// An object of the library, and what gives it back.
struct Owned<T>(NonNull<T>, unsafe extern "C" fn(*mut T));

impl<T> Owned<T> {
    /// Nothing where the library had no memory, or no answer yet.
    fn of(object: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Option<Owned<T>> {
        NonNull::new(object).map(|object| Owned(object, destroy))
    }

    fn ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object came from the library's own constructor, which `of` was given with the
        // destructor that belongs to it, and nobody else destroys it.
        unsafe { (self.1)(self.0.as_ptr()) }
    }
}

/// The id of a topic; nothing where brokers are too old to have given one. Waits for an answer.
pub fn of(
    client: &Client<Told>,
    topic: &str,
    patience: Duration,
) -> Result<Option<u128>, RDKafkaErrorCode> {
    let timed_out = RDKafkaErrorCode::OperationTimedOut;
    let name = CString::new(topic).map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
    let mut names = [name.as_ptr()];
    let millis = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `client` is alive throughout and so is its pointer. The collection copies the names, which
    // live until behind the call. Options and queue belong to this client. An answer that comes when its
    // queue is gone is dropped by the library.
    let event = unsafe {
        let handle = client.native_ptr();
        let topics = Owned::of(
            sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len()),
            sys::rd_kafka_TopicCollection_destroy,
        );
        let options = Owned::of(
            sys::rd_kafka_AdminOptions_new(
                handle,
                sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            sys::rd_kafka_AdminOptions_destroy,
        );
        let queue = Owned::of(sys::rd_kafka_queue_new(handle), sys::rd_kafka_queue_destroy);
        let (Some(topics), Some(options), Some(queue)) = (topics, options, queue) else {
            return Err(timed_out);
        };
        sys::rd_kafka_AdminOptions_set_request_timeout(
            options.ptr(),
            millis(patience),
            std::ptr::null_mut(),
            0,
        );
        sys::rd_kafka_DescribeTopics(handle, topics.ptr(), options.ptr(), queue.ptr());
        let event = sys::rd_kafka_queue_poll(queue.ptr(), millis(patience + LATE));
        Owned::of(event, sys::rd_kafka_event_destroy).ok_or(timed_out)?
    };
    // SAFETY: the event is alive until the end of this function, and owns all that is asked of it: result,
    // descriptions, their error and id. Each pointer is looked at before it is followed.
    unsafe {
        check(sys::rd_kafka_event_error(event.ptr()))?;
        let result = sys::rd_kafka_event_DescribeTopics_result(event.ptr());
        let mut count = 0;
        if result.is_null() {
            return Err(timed_out);
        }
        let described = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if count != 1 || described.is_null() {
            return Err(timed_out);
        }
        let described = *described;
        check(sys::rd_kafka_error_code(sys::rd_kafka_TopicDescription_error(described)))?;
        let id = sys::rd_kafka_TopicDescription_topic_id(described);
        if id.is_null() {
            return Ok(None);
        }
        let high = sys::rd_kafka_Uuid_most_significant_bits(id) as u64;
        let low = sys::rd_kafka_Uuid_least_significant_bits(id) as u64;
        let id = (u128::from(high) << 64) | u128::from(low);
        Ok(Some(id).filter(|id| *id != 0))
    }
}

fn check(code: sys::rd_kafka_resp_err_t) -> Result<(), RDKafkaErrorCode> {
    match code {
        sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(code.into()),
    }
}
