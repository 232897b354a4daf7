//! What a request is refused with: DynamoDB's types of errors, and their sentences. Pure.

use crate::json;
use crate::value::Item;
use holdfast_base::Kind;
use serde_json::{Value as Json, json};

/// DynamoDB's types of errors, as far as they occur here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// The body is no JSON, or not of the request's shape.
    Serialization,
    /// The request can never succeed as it is.
    Validation,
    /// There is no such operation here.
    UnknownOperation,
    /// The condition does not hold.
    ConditionalCheckFailed,
    /// There is no such table.
    ResourceNotFound,
    /// There is such a table already.
    ResourceInUse,
    /// The item is written to more often than it takes.
    ThroughputExceeded,
    /// The request has no signature.
    MissingAuthenticationToken,
    /// Its signature lacks something.
    IncompleteSignature,
    /// Its signature is not right.
    InvalidSignature,
    /// Its access key is not known.
    UnrecognizedClient,
    /// Whose key it is may not do that.
    AccessDenied,
    /// The store gives nothing now: the same request may be sent again.
    ServiceUnavailable,
    /// The store failed.
    InternalServerError,
}

impl Type {
    /// As it stands in `__type`.
    pub fn name(self) -> &'static str {
        match self {
            Type::Serialization => "com.amazon.coral.service#SerializationException",
            Type::Validation => "com.amazon.coral.validate#ValidationException",
            Type::UnknownOperation => "com.amazon.coral.service#UnknownOperationException",
            Type::ConditionalCheckFailed => {
                "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"
            }
            Type::ResourceNotFound => "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException",
            Type::ResourceInUse => "com.amazonaws.dynamodb.v20120810#ResourceInUseException",
            Type::ThroughputExceeded => {
                "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"
            }
            Type::MissingAuthenticationToken => {
                "com.amazon.coral.service#MissingAuthenticationTokenException"
            }
            Type::IncompleteSignature => "com.amazon.coral.service#IncompleteSignatureException",
            Type::InvalidSignature => "com.amazon.coral.service#InvalidSignatureException",
            Type::UnrecognizedClient => "com.amazon.coral.service#UnrecognizedClientException",
            Type::AccessDenied => "com.amazon.coral.service#AccessDeniedException",
            Type::ServiceUnavailable => "com.amazon.coral.availability#ServiceUnavailable",
            Type::InternalServerError => "com.amazonaws.dynamodb.v20120810#InternalServerError",
        }
    }

    /// The status of the answer.
    pub fn status(self) -> u16 {
        match self {
            Type::ServiceUnavailable => 503,
            Type::InternalServerError => 500,
            _ => 400,
        }
    }
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What a program reads.
    pub kind: Type,
    /// What a person reads.
    pub message: String,
    /// The item that a condition failed on, where it was asked for.
    pub item: Option<Item>,
}

/// What comes of an operation.
pub type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// A refusal of a type.
    pub fn new(kind: Type, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), item: None }
    }

    /// The request can never succeed as it is.
    pub fn validation(message: impl Into<String>) -> Fault {
        Fault::new(Type::Validation, message)
    }

    /// The body is not of the request's shape.
    pub fn shape(message: impl Into<String>) -> Fault {
        Fault::new(Type::Serialization, message)
    }

    /// The document of the answer.
    pub fn to_json(&self) -> Json {
        // DynamoDB writes this one large in refusals of shapes.
        let name = if self.kind == Type::Serialization { "Message" } else { "message" };
        let mut answer = json!({"__type": self.kind.name(), name: self.message});
        if let Some(item) = &self.item {
            answer["Item"] = json::from_item(item);
        }
        answer
    }
}

/// What a store says, as a client is told it.
impl From<holdfast_base::Error> for Fault {
    fn from(error: holdfast_base::Error) -> Fault {
        let kind = match error.kind {
            Kind::NotFound => Type::ResourceNotFound,
            Kind::Denied => Type::AccessDenied,
            Kind::Retry | Kind::Fenced | Kind::Full | Kind::ReadOnly => Type::ServiceUnavailable,
            _ => Type::InternalServerError,
        };
        match kind {
            Type::ResourceNotFound => Fault::new(kind, "Requested resource not found"),
            _ => Fault::new(kind, error.message),
        }
    }
}
