//! Operations that run as one launch.
//!
//! Each method launches the fused kernel if type, phase and shape allow it, and the plain
//! kernels otherwise. The bits are the same either way.

use djinn_types::Activation;

use super::CudaDevice;
use super::attention::rotated_by_decode;
use crate::check::overlap;
use crate::{
    Attention, AttentionOps, ElementwiseOps, FusedOps, KvLayer, NormParams, Phase, Projection, Qkv,
    Result, RopeOps, Rotation, Rows, View,
};

impl FusedOps for CudaDevice {
    fn linear_group(&self, x: View, parts: &[Projection], phase: Phase) -> Result<()> {
        self.products(&mut self.state(), x, parts, phase)
    }

    fn linear_gated(
        &self,
        x: View,
        gate: Projection,
        up: Projection,
        f: Activation,
        out: View,
        phase: Phase,
    ) -> Result<()> {
        self.op("gate").gate(gate.out, up.out, out)?;
        {
            let state = &mut *self.state();
            let group = self.open_products(state, x, &[gate, up], phase)?;
            if let Some(group) = group.as_ref().filter(|group| self.can_gate(group)) {
                return self.launch_gated(state, group, f, out);
            }
            self.launch_group(state, group)?;
        }
        self.gate(f, gate.out, up.out, out)
    }

    fn add_norm(&self, addend: View, x: View, params: NormParams, out: View) -> Result<()> {
        // The kernel processes row by row, so an output that overlaps the addend must be exactly
        // the addend.
        if addend != out && overlap(addend, out) {
            self.add(addend, x)?;
            return self.norm(params, x, out);
        }
        let add = self.op("add");
        add.add(addend, x)?;
        let op = self.op("norm");
        op.norm(x, params.weight, params.bias, out)?;
        let state = &mut *self.state();
        let added = self.f32(add, "x", addend)?;
        self.out(state, add, "out", x)?;
        self.normalise(state, op, params, added, x, out)
    }

    fn rope_append(&self, qkv: Qkv, rotation: Rotation, rows: Rows, kv: KvLayer) -> Result<()> {
        {
            let state = &mut *self.state();
            if let Some(unrotated) = self.unrotated(state, qkv, rotation, rows, kv)? {
                return self.rotate_and_append(state, &unrotated);
            }
        }
        self.rope(qkv.q, rotation)?;
        self.rope(qkv.k, rotation)?;
        self.append(qkv.k, qkv.v, rows, kv)
    }

    fn rope_append_attend(
        &self,
        qkv: Qkv,
        rotation: Rotation,
        rows: Rows,
        kv: KvLayer,
        how: Attention,
        out: View,
    ) -> Result<()> {
        {
            let state = &mut *self.state();
            if let Some(unrotated) = self.unrotated(state, qkv, rotation, rows, kv)? {
                let rotate = rotated_by_decode(&unrotated, how, out);
                if rotate.is_none() {
                    self.rotate_and_append(state, &unrotated)?;
                }
                return self.attend_with(state, qkv.q, (rows, kv, how), out, rotate);
            }
        }
        self.rope(qkv.q, rotation)?;
        self.rope(qkv.k, rotation)?;
        self.append(qkv.k, qkv.v, rows, kv)?;
        self.attend(qkv.q, rows, kv, how, out)
    }
}
