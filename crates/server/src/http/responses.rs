//! Schemas of answers, for the OpenAPI document. The answers themselves are built as JSON, because most of
//! their fields depend on the request.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// Fields that the answers of completions and chats have in common.
#[derive(Serialize, ToSchema)]
pub struct AnswerFields {
    /// Id of the answer, which begins with `cmpl-` or `chatcmpl-`.
    pub id: String,
    /// `text_completion`, `chat.completion`, or `chat.completion.chunk` in a stream of a chat.
    pub object: String,
    /// Time of the answer in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// Token counts.
    pub usage: Option<TokenUsage>,
    /// Session and captures, if the request asked for them.
    pub djinn: Option<DjinnAnswer>,
}

/// Fields that the choices of completions and chats have in common.
#[derive(Serialize, ToSchema)]
pub struct ChoiceFields {
    /// Index of the choice.
    pub index: usize,
    /// Reason for the end: `stop` or `length`; null while a stream continues.
    pub finish_reason: Option<String>,
    /// Log-probabilities, if requested.
    #[schema(value_type = Option<Object>)]
    pub logprobs: Option<serde_json::Value>,
    /// Generated token ids, if `return_token_ids` is true.
    pub token_ids: Option<Vec<u32>>,
    /// Captures of the choice, if the request has several choices.
    pub djinn: Option<DjinnAnswer>,
}

/// Answer of `POST /v1/completions`.
#[derive(Serialize, ToSchema)]
pub struct CompletionAnswer {
    /// Fields that the answers of completions and chats have in common.
    #[serde(flatten)]
    pub common: AnswerFields,
    /// One choice for each prompt and `n`.
    pub choices: Vec<CompletionChoice>,
}

/// One choice of a completion.
#[derive(Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Fields that the choices of completions and chats have in common.
    #[serde(flatten)]
    pub common: ChoiceFields,
    /// Generated text, after the prompt if `echo` is true.
    pub text: String,
}

/// Answer of `POST /v1/chat/completions`.
#[derive(Serialize, ToSchema)]
pub struct ChatAnswer {
    /// Fields that the answers of completions and chats have in common.
    #[serde(flatten)]
    pub common: AnswerFields,
    /// Choices of the answer.
    pub choices: Vec<ChatChoice>,
}

/// One choice of a chat.
#[derive(Serialize, ToSchema)]
pub struct ChatChoice {
    /// Fields that the choices of completions and chats have in common.
    #[serde(flatten)]
    pub common: ChoiceFields,
    /// Message of the model; a stream has `delta` instead.
    pub message: Option<AssistantMessage>,
    /// Part of the message that a chunk of a stream adds.
    pub delta: Option<AssistantMessage>,
}

/// Message that a model generated.
#[derive(Serialize, ToSchema)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: Option<String>,
    /// Text of the message.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
}

/// Token counts of an answer.
#[derive(Serialize, ToSchema)]
pub struct TokenUsage {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Sum of both.
    pub total_tokens: usize,
    /// Details of the prompt tokens.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Details of the prompt tokens of an answer.
#[derive(Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Prompt tokens that were not computed because the prefix cache had their keys and values.
    pub cached_tokens: usize,
}

/// Fields of an answer that only Djinn has.
#[derive(Serialize, ToSchema)]
pub struct DjinnAnswer {
    /// Name of the session, if it is kept.
    pub session: Option<String>,
    /// Captured activations by hook.
    pub captures: Option<BTreeMap<String, CapturedTensor>>,
}

/// A captured activation.
#[derive(Serialize, ToSchema)]
pub struct CapturedTensor {
    /// Always `f32`.
    pub dtype: String,
    /// Lengths of the dimensions.
    pub shape: Vec<usize>,
    /// Little-endian numbers in base64.
    pub base64: String,
}

/// Answer of a request that failed.
#[derive(Serialize, ToSchema)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorDetail,
}

/// An error in OpenAI's format.
#[derive(Serialize, ToSchema)]
pub struct ErrorDetail {
    /// Message for people.
    pub message: String,
    /// Class of the error, for example `invalid_request_error`.
    pub r#type: String,
    /// Field of the request that caused the error, if known.
    pub param: Option<String>,
    /// Machine-readable code, for example `context_length_exceeded`.
    pub code: String,
    /// Id of the request, as in the header `x-request-id` and in the server's log.
    pub request_id: Option<String>,
}

/// Answer of `GET /v1/models`.
#[derive(Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: String,
    /// Models of the server, the default one first.
    pub data: Vec<ModelAnswer>,
}

/// A model of the server.
#[derive(Serialize, ToSchema)]
pub struct ModelAnswer {
    /// Name of the model.
    pub id: String,
    /// Always `model`.
    pub object: String,
    /// Always 0.
    pub created: u64,
    /// Always `djinn`.
    pub owned_by: String,
    /// State and layout of the model.
    pub djinn: ModelDetail,
}

/// State and layout of a model.
#[derive(Serialize, ToSchema)]
pub struct ModelDetail {
    /// `ready`, `loading`, `unloaded` or `failed`.
    pub state: String,
    /// Model family, for example `llama`.
    pub family: String,
    /// How the model is laid out in memory, or why it failed.
    pub routing: String,
    /// Tokens of the longest session.
    pub context: Option<u64>,
    /// Whether the model has a chat template.
    pub chat: bool,
    /// Open sessions.
    pub sessions: u64,
}

/// Answer of `GET /v1/capabilities`.
#[derive(Serialize, ToSchema)]
pub struct CapabilitiesAnswer {
    /// Version of the server.
    pub version: String,
    /// Protocols that the server speaks.
    pub protocols: Vec<String>,
    /// Name of the server.
    pub node: String,
    /// Device that models run on.
    pub device: String,
    /// Details of the device.
    pub device_detail: String,
    /// Owner of the API key.
    pub owner: String,
    /// Whether kept sessions continue after a restart.
    pub durable: bool,
    /// Limits of requests.
    pub limits: CapabilityLimits,
    /// Paths of the API.
    pub endpoints: Vec<String>,
    /// Fields of the object `djinn` of a request.
    pub djinn: Vec<String>,
}

/// Limits of requests.
#[derive(Serialize, ToSchema)]
pub struct CapabilityLimits {
    /// Bytes of an HTTP body.
    pub body_bytes: usize,
    /// Bytes of a gRPC message.
    pub message_bytes: u64,
    /// Bytes of a pushed model.
    pub upload_bytes: u64,
    /// Bytes that the sessions of one request may capture.
    pub capture_bytes: u64,
    /// Sessions that one request may open.
    pub batch: u64,
    /// Seconds that an unused session stays open by default.
    pub lease_s: f64,
}
