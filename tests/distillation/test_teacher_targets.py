"""A teacher's predictions as soft targets of the loss."""

import pytest
import torch
import torch.nn.functional as F
from builders import random_model

from minigpt.distillation.step_parts import Teacher
from minigpt.training.loss import LossModel


def test_a_teacher_has_no_dropout_and_no_gradient_and_reads_the_scored_positions_only() -> None:
    torch.manual_seed(1)
    student, teacher = random_model(), random_model(dropout=0.5, seed=1)
    model = LossModel(student)
    model.soft_targets = Teacher(teacher, 0.5)
    model.train()
    assert student.training
    assert not teacher.training
    inputs, targets = torch.randint(37, (2, 2, 8))
    scored = torch.tensor([1, 2, 11])
    loss = model(inputs, targets, scored)
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    rows = [(logits.flatten(0, 1)[scored]).log_softmax(1) for logits in (student(inputs), teacher(inputs))]
    goal = 0.5 * F.one_hot(targets.flatten()[scored], 257) + 0.5 * rows[1].exp()
    assert loss.item() == pytest.approx(-(goal * rows[0]).sum(1).mean().item(), rel=1e-5)


def test_a_model_that_equals_its_teacher_learns_nothing_from_it() -> None:
    model, teacher = LossModel(random_model()), random_model()
    model.soft_targets = Teacher(teacher, 1.0)
    teacher.load_state_dict(model.model.state_dict())
    model(*torch.randint(37, (2, 2, 8))).backward()
    assert all(parameter.grad.abs().max() < 1e-6 for parameter in model.model.parameters())
