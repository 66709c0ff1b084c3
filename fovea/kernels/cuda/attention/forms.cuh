// The policies of each form (forms.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/attention/forms.h"
#include "fovea/kernels/cuda/attention/groups.cuh"
#include "fovea/kernels/cuda/attention/score.cuh"

namespace fovea::kernels::cuda {

template <ScoreForm>
struct ScoreOf;
template <>
struct ScoreOf<ScoreForm::plain> : Score<ConstantScale> {};
template <>
struct ScoreOf<ScoreForm::temperature> : Score<RowTemperature> {};
template <>
struct ScoreOf<ScoreForm::soft_cap> : Score<ConstantScale, SoftCap> {};
template <>
struct ScoreOf<ScoreForm::alibi> : Score<ConstantScale, NoCap, Alibi> {};
template <>
struct ScoreOf<ScoreForm::any> : Score<RowTemperature, MaybeSoftCap, Alibi> {};
template <>
struct ScoreOf<ScoreForm::gate>
    : Score<ConstantScale, NoCap, NoBias, gate_chunks(ScoreForm::gate)> {};
template <>
struct ScoreOf<ScoreForm::gate_any>
    : Score<RowTemperature, NoCap, Alibi, gate_chunks(ScoreForm::gate_any)> {};

template <MaskForm>
struct MaskOf;
template <>
struct MaskOf<MaskForm::full> : Band<Edge::none, false, false> {};
template <>
struct MaskOf<MaskForm::causal> : Band<Edge::causal, false, false> {};
template <>
struct MaskOf<MaskForm::window> : Band<Edge::causal, true, false> {};
template <>
struct MaskOf<MaskForm::documents> : Band<Edge::causal, false, true> {};
template <>
struct MaskOf<MaskForm::any> : Band<Edge::causal, true, true> {};
template <>
struct MaskOf<MaskForm::groups> : GroupSegments<false> {};
template <>
struct MaskOf<MaskForm::groups_several> : GroupSegments<true> {};
template <>
struct MaskOf<MaskForm::local_rest> : LocalRest {};

}  // namespace fovea::kernels::cuda
