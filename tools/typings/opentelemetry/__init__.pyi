# What disc uses of opentelemetry-sdk 1.45.2.
from opentelemetry import propagate as propagate
from opentelemetry import trace as trace
