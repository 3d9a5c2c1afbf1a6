//! Messages of the protocol: the first byte selects the type, the rest is the message.

use std::fmt::Debug;

use djinn_wire::v1::{
    ActivationRequest, BranchBackRequest, BranchRequest, CreateRequest, DetokenizeRequest, Event,
    ForkRequest, GenerateRequest, HooksRequest, OfferRequest, PlanRequest, PushPart,
    RegisterRequest, ResumeRequest, SavedPart, SetBreakpointsRequest, SignalRequest, Tensor,
    TensorPart, TokenizeRequest,
};
use djinn_wire::{Assembler, elements, numbers, parts, tensor};
use prost::Message;

/// Largest tensor that is assembled, in bytes.
const TENSOR_BYTES_MAX: u64 = 1 << 20;

/// Decodes the message and its tensors.
pub fn run(data: &[u8]) {
    let Some((&kind, message)) = data.split_first() else {
        return;
    };
    const READERS: [fn(&[u8]); 20] = [
        |m| read_tensor(m),
        |m| read_parts(m),
        |m| reads_back::<CreateRequest>(m),
        |m| reads_back::<GenerateRequest>(m),
        |m| reads_back::<ForkRequest>(m),
        |m| reads_back::<SignalRequest>(m),
        |m| reads_back::<BranchRequest>(m),
        |m| reads_back::<BranchBackRequest>(m),
        |m| reads_back::<ResumeRequest>(m),
        |m| reads_back::<SetBreakpointsRequest>(m),
        |m| reads_back::<ActivationRequest>(m),
        |m| reads_back::<HooksRequest>(m),
        |m| reads_back::<RegisterRequest>(m),
        |m| reads_back::<PlanRequest>(m),
        |m| reads_back::<OfferRequest>(m),
        |m| reads_back::<PushPart>(m),
        |m| reads_back::<SavedPart>(m),
        |m| reads_back::<TokenizeRequest>(m),
        |m| reads_back::<DetokenizeRequest>(m),
        |m| reads_back::<Event>(m),
    ];
    READERS[usize::from(kind) % READERS.len()](message);
}

/// Checks that a decoded message is encoded to bytes that decode to the same message.
fn reads_back<T: Message + Default + PartialEq + Debug>(data: &[u8]) {
    let Ok(message) = T::decode(data) else {
        return;
    };
    let bytes = message.encode_to_vec();
    let again = T::decode(&bytes[..]).expect("an encoded message is valid");
    // Numbers that are not numbers are unequal to themselves, so the bytes are compared.
    assert_eq!(again.encode_to_vec(), bytes);
}

fn read_tensor(data: &[u8]) {
    reads_back::<Tensor>(data);
    let Ok(message) = Tensor::decode(data) else {
        return;
    };
    let Ok((shape, values)) = numbers(&message) else {
        return;
    };
    assert_eq!(shape.iter().product::<usize>(), values.len());
    let count = elements(&message.shape).expect("the shape was accepted");
    assert_eq!(count, values.len());
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (again_shape, again) = numbers(&tensor(&shape, &values)).expect("a made tensor is valid");
    assert_eq!((again_shape, bits(&again)), (shape.clone(), bits(&values)));
    let mut assembler = Assembler::default();
    let mut whole = None;
    for part in parts("x", &shape, &values) {
        whole = assembler
            .push(part, u64::MAX)
            .expect("a made part is valid");
    }
    let (_, whole) = whole.expect("the last part completes the tensor");
    let (_, joined) = numbers(&whole).expect("a joined tensor is valid");
    assert_eq!(bits(&joined), bits(&values));
}

/// Joins parts; each part follows its length in one byte.
fn read_parts(mut data: &[u8]) {
    let mut assembler = Assembler::default();
    while let Some((&length, rest)) = data.split_first() {
        let (part, rest) = rest.split_at(usize::from(length).min(rest.len()));
        data = rest;
        let Ok(part) = TensorPart::decode(part) else {
            continue;
        };
        match assembler.push(part, TENSOR_BYTES_MAX) {
            Ok(Some((_, tensor))) => {
                numbers(&tensor).expect("a joined tensor is valid");
            }
            Ok(None) => {}
            Err(_) => return,
        }
    }
}
