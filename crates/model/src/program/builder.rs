//! Builder of programs, shared by all families.
//!
//! A family declares each tensor at its first use, so segments list tensors in order of use.

use djinn_types::{Activation, DType, NormKind, Order};

use super::Program;
use super::dims::{Dims, Rope};
use super::op::{Buf, Op};
use super::site::Site;
use super::tensor::{Role, Segment, SegmentKind, TensorId, TensorSpec};

/// Builder of a [`Program`], one operation at a time.
pub(crate) struct Builder {
    dtype: DType,
    tensors: Vec<TensorSpec>,
    segments: Vec<Segment>,
    ops: Vec<Op>,
    embed: Vec<Op>,
    blocks: Vec<Vec<Op>>,
}

/// Normalisation of a family; all norms of a family are of one kind.
#[derive(Clone, Copy)]
pub(crate) struct NormSpec {
    pub kind: NormKind,
    pub eps: f32,
}

/// Shape of a linear layer.
#[derive(Clone, Copy)]
pub(crate) struct LinearShape {
    pub input: usize,
    pub output: usize,
    pub bias: bool,
    pub order: Order,
}

impl LinearShape {
    /// Shape of a `torch.nn.Linear` layer.
    pub fn linear(input: usize, output: usize, bias: bool) -> Self {
        LinearShape {
            input,
            output,
            bias,
            order: Order::OutIn,
        }
    }

    /// Shape of a `Conv1D` layer, as GPT-2 uses it.
    pub fn conv(input: usize, output: usize) -> Self {
        LinearShape {
            input,
            output,
            bias: true,
            order: Order::InOut,
        }
    }
}

impl Builder {
    /// Starts a program with its embedding segment. Tensors have `dtype` until a checkpoint
    /// replaces it with the stored dtype.
    pub fn new(dtype: DType) -> Self {
        let mut builder = Builder {
            dtype,
            tensors: Vec::new(),
            segments: Vec::new(),
            ops: Vec::new(),
            embed: Vec::new(),
            blocks: Vec::new(),
        };
        builder.segment(SegmentKind::Embedding);
        builder
    }

    /// Starts a segment; tensors declared from now on belong to it.
    pub fn segment(&mut self, kind: SegmentKind) {
        self.segments.push(Segment {
            kind,
            tensors: Vec::new(),
        });
    }

    fn tensor(&mut self, name: String, shape: Vec<usize>, role: Role) -> TensorId {
        let id = TensorId(self.tensors.len());
        self.tensors.push(TensorSpec {
            name,
            shape,
            dtype: self.dtype,
            role,
        });
        if let Some(segment) = self.segments.last_mut() {
            segment.tensors.push(id);
        }
        id
    }

    /// Declares a table.
    pub fn table(&mut self, name: &str, rows: usize, cols: usize) -> TensorId {
        self.tensor(name.to_owned(), vec![rows, cols], Role::Table)
    }

    /// Declares a matrix `[rows, cols]`, in the order of the file.
    pub fn matrix(&mut self, name: String, rows: usize, cols: usize) -> TensorId {
        self.tensor(name, vec![rows, cols], Role::Matrix)
    }

    /// Appends an operation.
    pub fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Appends a hook.
    pub fn hook(&mut self, site: Site, buf: Buf) {
        self.op(Op::Hook { site, buf });
    }

    /// Appends the sum `to += from`.
    pub fn add(&mut self, from: Buf, to: Buf) {
        self.op(Op::Add { from, to });
    }

    /// Appends the token embedding and its hook; returns the token table.
    pub fn embed(&mut self, name: &str, vocab: usize, d_model: usize) -> TensorId {
        let table = self.table(name, vocab, d_model);
        let to = Buf::Resid;
        self.op(Op::Embed { table, to });
        self.hook(Site::Embed, to);
        table
    }

    /// Appends the norm called `name` over groups of `width` elements.
    pub fn norm(&mut self, norm: NormSpec, name: &str, width: usize, from: Buf, to: Buf) {
        let weight = self.tensor(format!("{name}.weight"), vec![width], Role::Scale);
        let bias = (norm.kind == NormKind::Layer)
            .then(|| self.tensor(format!("{name}.bias"), vec![width], Role::Bias));
        self.op(Op::Norm {
            kind: norm.kind,
            eps: norm.eps,
            width,
            weight,
            bias,
            from,
            to,
        });
    }

    /// Appends the linear layer called `name`.
    pub fn linear(&mut self, shape: LinearShape, name: &str, from: Buf, to: Buf) {
        let (rows, cols) = match shape.order {
            Order::OutIn => (shape.output, shape.input),
            Order::InOut => (shape.input, shape.output),
        };
        let weight = self.matrix(format!("{name}.weight"), rows, cols);
        let bias = shape
            .bias
            .then(|| self.tensor(format!("{name}.bias"), vec![shape.output], Role::Bias));
        self.op(Op::Linear {
            weight,
            order: shape.order,
            bias,
            from,
            to,
        });
    }

    /// Appends the splits of a fused projection into queries, keys and values. The projection has
    /// `kv_heads` groups, each with the group's queries, its key and its value in this order.
    pub fn split_groups(&mut self, dims: &Dims) {
        let queries = dims.heads / dims.kv_heads * dims.d_head;
        let stride = queries + 2 * dims.d_head;
        let parts = [
            (0, queries, Buf::Q),
            (queries, dims.d_head, Buf::K),
            (queries + dims.d_head, dims.d_head, Buf::V),
        ];
        for (first, width, to) in parts {
            self.op(Op::Split {
                from: Buf::Fused,
                first,
                stride,
                width,
                to,
            });
        }
    }

    /// Appends the hooks on queries, keys and values.
    pub fn hook_qkv(&mut self, block: usize) {
        self.hook(Site::Q(block), Buf::Q);
        self.hook(Site::K(block), Buf::K);
        self.hook(Site::V(block), Buf::V);
    }

    /// Appends the rotary embedding of queries and keys.
    pub fn rotate(&mut self) {
        self.op(Op::Rope { buf: Buf::Q });
        self.op(Op::Rope { buf: Buf::K });
    }

    /// Appends attention and its output projection `name`.
    pub fn attend(
        &mut self,
        block: usize,
        scale: f32,
        window: Option<usize>,
        output: LinearShape,
        name: &str,
    ) {
        self.op(Op::Attend {
            block,
            scale,
            window,
        });
        self.hook(Site::Z(block), Buf::Z);
        self.linear(output, name, Buf::Z, Buf::AttnOut);
        self.hook(Site::AttnOut(block), Buf::AttnOut);
    }

    /// Appends an MLP without a gate, `down(f(up(from)))`. `layers` holds `up` and `down`, each
    /// with its name.
    pub fn mlp(
        &mut self,
        block: usize,
        from: Buf,
        f: Activation,
        layers: [(LinearShape, &str); 2],
    ) {
        let [(up, up_name), (down, down_name)] = layers;
        self.linear(up, up_name, from, Buf::Pre);
        self.hook(Site::MlpPre(block), Buf::Pre);
        self.op(Op::Activate {
            f,
            from: Buf::Pre,
            to: Buf::Post,
        });
        self.hook(Site::MlpPost(block), Buf::Post);
        self.linear(down, down_name, Buf::Post, Buf::MlpOut);
        self.hook(Site::MlpOut(block), Buf::MlpOut);
    }

    /// Appends the sum of attention and residual, and the hook after it.
    pub fn resid_mid(&mut self, block: usize) {
        self.add(Buf::AttnOut, Buf::Resid);
        self.hook(Site::ResidMid(block), Buf::Resid);
    }

    /// Appends the sum of MLP and residual, and the hook after it.
    pub fn resid_post(&mut self, block: usize) {
        self.add(Buf::MlpOut, Buf::Resid);
        self.hook(Site::ResidPost(block), Buf::Resid);
    }

    /// Starts a block: its segment and its first hook.
    pub fn start_block(&mut self, block: usize) {
        if block == 0 {
            self.embed = std::mem::take(&mut self.ops);
        }
        self.segment(SegmentKind::Block(block));
        self.hook(Site::ResidPre(block), Buf::Resid);
    }

    /// Ends the current block.
    pub fn end_block(&mut self) {
        self.blocks.push(std::mem::take(&mut self.ops));
    }

    /// Starts the head: its segment, the final norm and the hook after it.
    pub fn start_head(&mut self, norm: NormSpec, name: &str, d_model: usize) {
        self.segment(SegmentKind::Head);
        self.norm(norm, name, d_model, Buf::Resid, Buf::Final);
        self.hook(Site::Normalized, Buf::Final);
    }

    /// Appends the output projection: by the token table if `tied` gives it, otherwise by
    /// `lm_head`.
    pub fn unembed(&mut self, tied: Option<TensorId>, dims: &Dims, bias: bool) {
        let weight = tied
            .unwrap_or_else(|| self.matrix("lm_head.weight".to_owned(), dims.vocab, dims.d_model));
        let bias =
            bias.then(|| self.tensor("lm_head.bias".to_owned(), vec![dims.vocab], Role::Bias));
        self.op(Op::Linear {
            weight,
            order: Order::OutIn,
            bias,
            from: Buf::Final,
            to: Buf::Logits,
        });
        self.hook(Site::Logits, Buf::Logits);
    }

    /// Returns the finished program.
    pub fn finish(self, family: &'static str, dims: Dims, rope: Option<Rope>) -> Program {
        Program {
            family,
            dims,
            rope,
            tensors: self.tensors,
            segments: self.segments,
            embed: self.embed,
            blocks: self.blocks,
            head: self.ops,
        }
    }
}
