"""Renders chat templates in a process of its own: jinja.py starts this file, so it imports nothing of EdgePos.

A template is a program from a stranger. It runs in Jinja's immutable sandbox with the filters and globals of transformers'
apply_chat_template, and under limits of processor time and memory that the operating system keeps.
"""

import datetime
import json
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

MOST_CONSTANTS, LONGEST_CONSTANT = 200, 200


class Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %} marks an answer for training; the text is what is inside."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """Plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment(date):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    if date:
        env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def why(error):
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    known = isinstance(error, (jinja2.exceptions.TemplateError, OverflowError))
    return text if known else f"{type(error).__name__}: {text}"


def constants(env, source):
    """Strings that the template compares with or prints."""
    found = {}
    for node in env.parse(source).find_all(jinja2.nodes.Const):
        if isinstance(node.value, str) and 0 < len(node.value) <= LONGEST_CONSTANT:
            found[node.value] = None
    return list(found)[:MOST_CONSTANTS]


def render(template, job, messages):
    parts, size = [], 0
    for part in template.generate(messages=messages, tools=None, documents=None, add_generation_prompt=True, **job["variables"]):
        parts.append(part)
        size += len(part)
        if size > job["most"]:
            raise OverflowError(f"it makes more than {job['most']} characters")
    return "".join(parts)


def main():
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]),) * 2)
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
    except (ImportError, ValueError, OSError):
        pass  # the caller's own time limit is left
    job = json.load(sys.stdin)
    answer = {}
    try:
        env = environment(job["date"])
        template = env.from_string(job["template"])
        answer["constants"] = constants(env, job["template"])
    except Exception as error:
        answer["error"] = why(error)
    else:
        texts = answer["texts"] = []
        for messages in job["conversations"]:
            try:
                texts.append([render(template, job, messages), None])
            except Exception as error:
                texts.append([None, why(error)])
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
